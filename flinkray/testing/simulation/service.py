"""Implements the RPC service of a simulated process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from flinkray.core.clock import Clock
from flinkray.core.errors import ProcessExistsError
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import Opened
from flinkray.rpc.clock import LoopClock
from flinkray.rpc.service import RpcService
from flinkray.rpc.spec import EndpointSpec, process_of
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.testing.simulation.blocking import SimulatedExecutor
from flinkray.testing.simulation.interfaces import World
from flinkray.testing.simulation.network import NetworkedService
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.step_threads import StepThreads

T = TypeVar("T")


class SimulatedRpcService(NetworkedService):
    """An RPC service in a simulated process, on the simulated network. Create it in its own
    process; :meth:`Simulation.service` creates one for the running process. Processes that it
    spawns are simulated, too."""

    def __init__(
        self,
        process_name: str,
        simulation: World,
        *,
        clock: Clock | None = None,
        ask_timeout: float = RpcService.DEFAULT_ASK_TIMEOUT,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        """Make the service of the running process, which other processes know as *process_name*.
        *clock* None: the clock of the process, whose wall clock may be wrong. Raises
        ProcessExistsError: the network has a process of that name."""
        self.simulation = simulation
        self.network = simulation.network
        process = asyncio.get_running_loop()
        assert isinstance(process, SimulatedProcess)
        self.process = process
        if process_name in self.network.services:
            raise ProcessExistsError(process_name)
        incarnation = str(simulation.next_incarnation())
        super().__init__(
            process_name,
            incarnation,
            random=stream(simulation.seed, "jitter", process_name, incarnation),
            clock=clock or LoopClock(process, simulation.epoch + process.clock_error),
            ask_timeout=ask_timeout,
            max_frame_size=max_frame_size,
        )
        self._simulated_executor = SimulatedExecutor(
            simulation.durations.blocking_time, self._begin_work
        )
        self._threads: StepThreads | None = None
        self.network.services[process_name] = self

    @property
    def is_up(self) -> bool:
        return self.network.services.get(self.process_name) is self

    async def spawn(self, spec: EndpointSpec) -> str:
        return await self.simulation.supervisor.spawn(spec, self)

    async def kill(self, process_name: str, patience: float = 0.0) -> None:
        await self.simulation.supervisor.kill(process_name)

    async def is_dead(self, identity: str) -> bool:
        service = self.network.services.get(process_of(identity))
        return service is None or service.identity != identity

    async def process_names(self, prefix: str) -> tuple[str, ...]:
        return self.simulation.supervisor.process_names(prefix)

    async def stop(self, process_name: str) -> None:
        if process_name in self.network.services:
            connection = await self._connection(process_name)
            await connection.stop_process()
        else:
            await self.kill(process_name)

    @property
    def socket_access(self) -> None:
        return None

    @property
    def executor(self) -> SimulatedExecutor:
        return self._simulated_executor

    async def run_blocking(self, fn: Callable[..., T], *args: object) -> T:
        return await self._simulated_executor.run(self.process, fn, *args)

    def _begin_work(self, work: Callable[[], None]) -> None:
        """Run blocking work in one step; or in a simulated thread, if a fault is to pause the
        process in the middle of the work."""
        pause = self.simulation.pause_in_work(self.process)
        if pause is None:
            work()
            return
        if self._threads is None:
            random = stream(self.simulation.seed, "blocking work", self.incarnation)
            self._threads = StepThreads(self.process, random)
        self._threads.begin(work).before_disk = pause

    async def _open_transport(self, process_name: str, where: str | None) -> Opened:
        near, target = await self.network.open(self, process_name, where)
        return Opened(near, target.incarnation, target.incarnation)

    def _connection_opened(self, connection: ClientConnection) -> None:
        if connection.process_name != self.process_name:
            self.simulation.supervisor.guard(connection, self.process)

    async def _end_children(self) -> None:
        self.simulation.supervisor.end_children(self.process_name)

    async def _end_process(self) -> None:
        await self.simulation.supervisor.end(self)

    async def _release(self) -> None:
        if self.is_up:
            del self.network.services[self.process_name]
        await super()._release()
