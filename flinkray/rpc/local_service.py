"""Simulated processes: services on one event loop that talk through the wire format."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flinkray.core.clock import Clock
from flinkray.core.errors import ConfigurationError, ProcessExistsError, RpcConnectionError
from flinkray.rpc.calls.connection_pool import Opened
from flinkray.rpc.clock import LoopClock
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.service import RpcService
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.spec import EndpointSpec, load_factory, process_of
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.rpc.wire.listener import SocketAccess

logger = logging.getLogger(__name__)

_NAME_FREED_TIMEOUT = 10.0
"""Seconds that a spawn waits while a process of the same name starts or ends."""
_NAME_FREED_POLL = 0.02


async def create_endpoint(service: RpcService, spec: EndpointSpec) -> RpcEndpoint:
    """Run the factory of *spec*, start the endpoint, and return it when ``on_start`` is done.

    Raises the exception of the factory or of ``on_start``.
    """
    made = load_factory(spec.factory)(service, spec.arguments)
    endpoint = await made if inspect.isawaitable(made) else made
    if not isinstance(endpoint, RpcEndpoint):
        raise ConfigurationError(
            f"the factory {spec.factory} returned a {type(endpoint).__name__}, not an RpcEndpoint"
        )
    endpoint.start()
    await asyncio.wait(
        {endpoint.mailbox.started, endpoint.terminated}, return_when=asyncio.FIRST_COMPLETED
    )
    if endpoint.mailbox.started.cancelled():
        await endpoint.terminated
        raise RpcConnectionError(f"{endpoint.address} was closed before it had started")
    return endpoint


@dataclass(slots=True, eq=False)
class _Process:
    spec: EndpointSpec
    owner: str
    restarts_left: int
    service: LocalRpcService | None = None
    creation: asyncio.Task[RpcEndpoint] | None = None
    """The task that creates the main endpoint of the process, since its last start."""
    restart: asyncio.Task[None] | None = None


@dataclass(eq=False)
class LocalNetwork:
    """Simulated processes that can reach each other. All of them run on one event loop."""

    restart_delay: float = 0.0
    """Seconds from a crash until a process with restarts left is started again."""
    services: dict[str, LocalRpcService] = field(default_factory=dict)
    """The running processes, by name."""
    belongings: dict[type, Any] = field(default_factory=dict)
    """Objects that belong to the network as a whole, by type.

    Code in its processes finds them here.
    """
    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    """The secret with which processes authenticate each other at their own sockets."""
    _processes: dict[str, _Process] = field(default_factory=dict)
    _incarnations: int = 0
    _ends: set[asyncio.Task[None]] = field(default_factory=set)

    def next_incarnation(self) -> str:
        self._incarnations += 1
        return str(self._incarnations)

    async def spawn(self, spec: EndpointSpec, spawner: LocalRpcService) -> str:
        await self._until_free(spec.name, spawner.loop)
        process = _Process(spec, spawner.process_name, spec.max_restarts)
        self._processes[spec.name] = process
        try:
            endpoint = await self._run(process, spawner.clock, spawner.ask_timeout)
        except BaseException:
            if self._processes.get(spec.name) is process:
                if spec.detached and not spawner.is_up and process.creation is not None:
                    process.creation.add_done_callback(lambda task: self._start_ended(spec, task))
                else:
                    self.kill(spec.name)
            raise
        return endpoint.address

    async def _until_free(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Wait while a process called *name* starts or ends, as a spawn on Ray does.

        Raises ProcessExistsError: the process runs, or its name is not free in time.
        """
        give_up = loop.time() + _NAME_FREED_TIMEOUT
        while name in self._processes or name in self.services:
            service = self.services.get(name)
            if (service is not None and service.endpoints()) or loop.time() > give_up:
                raise ProcessExistsError(name)
            await asyncio.sleep(_NAME_FREED_POLL)

    def _start_ended(self, spec: EndpointSpec, creation: asyncio.Task[RpcEndpoint]) -> None:
        """Kill a detached process whose start (*creation*) has failed. Its spawner is gone."""
        process = self._processes.get(spec.name)
        failed = not creation.cancelled() and creation.exception() is not None
        if failed and process is not None and process.creation is creation:
            self.kill(spec.name)

    def crash(self, process_name: str) -> None:
        """Let the process die as by SIGKILL; it is restarted if its spec allows that."""
        process = self._processes.get(process_name)
        service = self.services.get(process_name)
        if service is not None:
            service.abort()
            self.end_children(process_name)
        if process is not None and service is not None:
            process.service = None
            if process.restarts_left == 0:
                del self._processes[process_name]
            else:
                process.restarts_left -= 1 if process.restarts_left > 0 else 0
                process.restart = service.loop.create_task(
                    self._restart(process, service.clock, service.ask_timeout)
                )

    def kill(self, process_name: str) -> None:
        """Let the process die for good; no error if there is no such process."""
        process = self._processes.pop(process_name, None)
        if process is not None:
            process.service = None
            if process.restart is not None:
                process.restart.cancel()
        service = self.services.get(process_name)
        if service is not None:
            service.abort()
        self.end_children(process_name)

    def end_children(self, owner: str) -> None:
        """Kill the processes that *owner* spawned and that are not detached."""
        for name, process in tuple(self._processes.items()):
            if process.owner == owner and not process.spec.detached:
                self.kill(name)

    async def close(self) -> None:
        """Kill every process, and wait for the ends that are under way."""
        for process_name in (*self._processes, *self.services):
            self.kill(process_name)
        while self._ends:
            await asyncio.wait(self._ends)

    async def _run(self, process: _Process, clock: Clock, ask_timeout: float) -> RpcEndpoint:
        # pass the spec through the codec, as every other service has to send it
        spec: EndpointSpec = codec.decode(codec.encode(process.spec))
        service = LocalRpcService(spec.name, self, clock=clock, ask_timeout=ask_timeout)
        process.service = service
        # a task of the new process: it ends with that process, not with the spawner
        creation = process.creation = service._tasks.create_awaited(
            self._create(process, service, spec), "start"
        )
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            if creation.cancelled():
                raise RpcConnectionError(f"the process {spec.name} died at its start") from None
            raise

    async def _create(
        self, process: _Process, service: LocalRpcService, spec: EndpointSpec
    ) -> RpcEndpoint:
        endpoint = await create_endpoint(service, spec)
        endpoint.terminated.add_done_callback(
            lambda _: self._main_ended(process, service, endpoint)
        )
        return endpoint

    async def _restart(self, process: _Process, clock: Clock, ask_timeout: float) -> None:
        await asyncio.sleep(self.restart_delay)
        try:
            await self._run(process, clock, ask_timeout)
        except Exception:
            if process.restart is asyncio.current_task():  # else it crashed, and restarts again
                logger.exception("restarting %s failed", process.spec.name)
                self.crash(process.spec.name)

    def _main_ended(
        self, process: _Process, service: LocalRpcService, endpoint: RpcEndpoint
    ) -> None:
        if process.service is not service:
            return  # killed or crashed: handled there
        if endpoint.terminated.exception() is not None and process.restarts_left != 0:
            self.crash(process.spec.name)
            return
        task = service.loop.create_task(self.end(service))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def end(self, service: LocalRpcService) -> None:
        """Close the service of a process that has ended normally, and free the process's name."""
        process = self._processes.get(service.process_name)
        if process is not None and process.service is service:
            del self._processes[service.process_name]
        try:
            await service.close()
        except Exception:
            logger.exception("%s ended with an error", service.process_name)


class LocalRpcService(BaseRpcService):
    """The RPC service of a simulated process; must be created on a running loop."""

    def __init__(
        self,
        process_name: str = "local",
        network: LocalNetwork | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        ask_timeout: float = RpcService.DEFAULT_ASK_TIMEOUT,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        """Create a simulated process on *network*.
        With None, a new network is created, for this process and the processes that it spawns.

        *clock* defaults to the event loop's, *random* to a generator with the same seed in each
        run. Raises ProcessExistsError: the network has a process of that name.
        """
        self.network = network or LocalNetwork()
        if process_name in self.network.services:
            raise ProcessExistsError(process_name)
        incarnation = self.network.next_incarnation()
        super().__init__(
            process_name,
            incarnation,
            clock=clock or LoopClock(asyncio.get_running_loop()),
            random=random or Random(f"{process_name}#{incarnation}"),
            ask_timeout=ask_timeout,
            max_frame_size=max_frame_size,
        )
        self.network.services[process_name] = self

    @property
    def socket_access(self) -> SocketAccess:
        return SocketAccess("127.0.0.1", f"process {os.getpid()}", self.network.secret, None)

    async def spawn(self, spec: EndpointSpec) -> str:
        return await self.network.spawn(spec, self)

    async def kill(self, process_name: str, patience: float = 0.0) -> None:
        self.network.kill(process_name)

    async def is_dead(self, identity: str) -> bool:
        service = self.network.services.get(process_of(identity))
        return service is None or service.identity != identity

    async def process_names(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.network.services if name.startswith(prefix)))

    async def stop(self, process_name: str) -> None:
        service = self.network.services.get(process_name)
        if service is None:
            self.network.kill(process_name)
        else:
            connection = await self._connection(process_name)
            await connection.stop_process()

    @property
    def is_up(self) -> bool:
        """Whether the process lives; also True while it starts or ends."""
        return self.network.services.get(self.process_name) is self

    def abort(self) -> None:
        """Die as by SIGKILL: endpoints are not stopped; peers only see broken connections."""
        self._leave()
        self._open_no_more()
        self._tasks.cancel()
        reason = f"the process {self.process_name} died"
        for connection in self.connections():
            connection.break_off(reason)
        for peer in tuple(self._peers):
            peer.break_off(reason)
        for endpoint in self.endpoints():
            endpoint.mailbox.abort()
        self.deadlines.close()
        self.deadlines_of_calls.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _leave(self) -> None:
        if self.is_up:
            del self.network.services[self.process_name]

    async def _open_transport(self, process_name: str, where: str | None) -> Opened:
        target = self.network.services.get(process_name)
        if target is None or where not in (None, target.incarnation):
            raise RpcConnectionError(f"no process {process_name} is running")
        transport = self.new_memory_transport(target)
        return Opened(transport, target.incarnation, target.incarnation)

    async def _end_children(self) -> None:
        self.network.end_children(self.process_name)

    async def _end_process(self) -> None:
        await self.network.end(self)

    async def _release(self) -> None:
        self._leave()
        await super()._release()
