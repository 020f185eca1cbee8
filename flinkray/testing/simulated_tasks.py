"""Runs the stream tasks of a simulated cluster: real tasks, in threads that the seed orders."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from flinkray.actors.gateways.task_process import TaskProcessArguments
from flinkray.actors.task_process.code_failure import CodeFailure
from flinkray.actors.task_process.endpoint import TaskProcess, create_task_process
from flinkray.actors.task_process.task_runtime import TaskRuntime
from flinkray.streaming.network import NetworkEnvironment, NetworkSettings, Signal
from flinkray.testing.simulation import SimulatedProcess, SimulatedRpcService
from flinkray.testing.simulation.data_links import SteppedTimers, SteppedTransport
from flinkray.testing.simulation.errors import ProcessDied
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.step_threads import StepSignal, StepThread, StepThreads

_GIVES_WAY = 0.2
"""The fraction of a task's steps before which other threads get a turn."""


class SimulatedClock:
    """The virtual clock for the threads of a simulated process."""

    def __init__(self, service: SimulatedRpcService) -> None:
        self.time = service.clock.time
        self.monotonic = service.clock.monotonic

    def wait(self, seconds: float, woken: threading.Event) -> None:
        thread = StepThread.current()
        assert thread is not None
        thread.wait(seconds)


class SteppedCode:
    """Runs a function in a simulated thread of a simulated process."""

    def __init__(
        self, process: SimulatedProcess, threads: StepThreads, function: Callable[[], object]
    ) -> None:
        self.returned: asyncio.Future[CodeFailure | None] = process.create_future()
        self._function = function
        threads.begin(self._run)

    def interrupt(self) -> None:
        """Do nothing: a cancellation already ends each wait of the function."""

    def _run(self) -> None:
        failure: CodeFailure | None = None
        try:
            self._function()
        except ProcessDied:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
            failure = CodeFailure.of(error)
        if not self.returned.done():
            self.returned.set_result(failure)


class SimulatedTaskRuntime(TaskRuntime):
    """Provides threads, signals, time and network to the tasks of one simulated task process."""

    def __init__(self, service: SimulatedRpcService) -> None:
        self.clock = SimulatedClock(service)
        self._service = service
        self._random = stream(service.simulation.seed, "threads", service.incarnation)
        self._threads = StepThreads(service.process, self._random)
        self._is_closed = False

    def run(self, function: Callable[[], object], name: str) -> SteppedCode:
        return SteppedCode(self._service.process, self._threads, function)

    def signal(self) -> Signal:
        return StepSignal()

    def between_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        def check_in_turn() -> None:
            if self._random.random() < _GIVES_WAY:
                thread = StepThread.current()
                assert thread is not None
                thread.give_way()
            check()

        return check_in_turn

    def submit(self, work: Callable[[], None]) -> None:
        if not self._is_closed:
            self._threads.begin(work)

    def network(self, settings: NetworkSettings) -> NetworkEnvironment:
        service, incarnation = self._service, f"data of {self._service.incarnation}"
        return NetworkEnvironment(
            service.process_name,
            b"",
            settings=settings,
            incarnation=incarnation,
            timers=SteppedTimers(service),
            transport=partial(SteppedTransport, service, incarnation),
        )

    def abandon(self, work: Callable[[], None]) -> None:
        """Do nothing: the threads of an ended process do not run; its connections are broken."""

    def close(self) -> None:
        self._is_closed = True


async def create_simulated_task_process(
    rpc_service: SimulatedRpcService, arguments: TaskProcessArguments
) -> TaskProcess:
    """Create a task process whose stream tasks run in steps."""
    return await create_task_process(rpc_service, arguments, SimulatedTaskRuntime(rpc_service))
