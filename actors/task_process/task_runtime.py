"""What the stream tasks of a process run on: threads, sockets and the system's clock.

A simulation has another one, where nothing of that is real and the tasks are the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.task_process.code_failure import CodeFailure
from flinkray.actors.task_process.code_thread import CodeThread
from flinkray.actors.task_process.writer_threads import WriterThreads
from flinkray.rpc import RpcService
from flinkray.streaming.network import NetworkEnvironment, NetworkSettings, Signal
from flinkray.streaming.time.waiting_clock import WaitingClock, WaitingSystemClock


class RunningCode(Protocol):
    """A function that runs beside the event loop."""

    returned: asyncio.Future[CodeFailure | None]
    """What it failed with, or None, when it has returned."""

    def interrupt(self) -> None:
        """Have it end soon, whatever it is at."""


class TaskRuntime(Protocol):
    """See the module.  Methods are called on the event loop where nothing else is said."""

    clock: WaitingClock
    """Of the tasks."""

    def run(self, function: Callable[[], object], name: str) -> RunningCode:
        """Begin to run it."""

    def signal(self) -> Signal:
        """For what one of these functions waits for."""

    def between_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        """What a task calls between two of its steps, in place of *check*."""

    def submit(self, work: Callable[[], None]) -> None:
        """Have *work* done, which may block and must not raise; from any thread."""

    def network(self, settings: NetworkSettings) -> NetworkEnvironment:
        """The channels of the process.  Raises TaskError where it can have none."""

    def abandon(self, work: Callable[[], None]) -> None:
        """The process is gone, and what it pretended to be is to end by *work*, which may block."""

    def close(self) -> None:
        """The process ends: nothing is begun any more."""


class ThreadedRuntime(TaskRuntime):
    """The real one."""

    def __init__(self, rpc_service: RpcService) -> None:
        self.clock = WaitingSystemClock()
        self._service = rpc_service
        self._writers = WriterThreads()

    def run(self, function: Callable[[], object], name: str) -> CodeThread:
        return CodeThread(function, name)

    def signal(self) -> Signal:
        return Signal()

    def between_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        return check

    def submit(self, work: Callable[[], None]) -> None:
        self._writers.submit(work)

    def network(self, settings: NetworkSettings) -> NetworkEnvironment:
        access = self._service.socket_access
        name = self._service.process_name
        if access is None:
            raise TaskError(f"{name} has no sockets for the channels of streams")
        return NetworkEnvironment(
            name,
            access.secret,
            host=access.host,
            node_id=access.node_id,
            tls=access.tls,
            settings=settings,
        )

    def abandon(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="close channels").start()

    def close(self) -> None:
        self._writers.close()
