"""Threads, sockets and clock on which a process's stream tasks run.

Tests run the same tasks on another runtime, in which threads, sockets and clock are simulated.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.task_process.code_failure import CodeFailure
from flinkray.actors.task_process.code_thread import CodeThread
from flinkray.rpc import RpcService
from flinkray.streaming.network import NetworkEnvironment, NetworkSettings, Signal
from flinkray.streaming.time.time_service import WaitingClock, WaitingSystemClock


class RunningCode(Protocol):
    """A function that a TaskRuntime runs beside the event loop."""

    returned: asyncio.Future[CodeFailure | None]
    """Completed when the function has returned: with its failure, or None."""

    def interrupt(self) -> None:
        """Make the function end soon, even if it waits or computes."""


class TaskRuntime(Protocol):
    """Threads, sockets and clock for stream tasks.
    Methods are called on the event loop unless noted otherwise.
    """

    clock: WaitingClock
    """Clock of the tasks."""

    def run(self, function: Callable[[], object], name: str) -> RunningCode:
        """Begin to run *function* in a thread called *name*."""

    def signal(self, network: NetworkEnvironment | None = None) -> Signal:
        """Return a signal for which a function started by :meth:`run` can wait. *network*: the
        channels that this function reads while it waits; None: it has no channels."""

    def between_steps(self, check: Callable[[], None]) -> Callable[[], None]:
        """Return a function that the task calls between its steps. It usually calls *check*; a
        simulation may also switch to another task there."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run *work*, which may block and must not raise. Called from any thread."""

    def network(self, settings: NetworkSettings) -> NetworkEnvironment:
        """Return the channels of the process. Raises TaskError if the process can have none."""

    def abandon(self, work: Callable[[], None]) -> None:
        """Run *work*, which may block, to close what a simulated process has left at its end."""

    def close(self) -> None:
        """Begin no further work of :meth:`submit`, because the process ends."""


class ThreadedRuntime(TaskRuntime):
    """The runtime with real threads, sockets and clock."""

    def __init__(self, rpc_service: RpcService) -> None:
        self.clock = WaitingSystemClock()
        self._service = rpc_service
        self._writers = WriterThreads()

    def run(self, function: Callable[[], object], name: str) -> CodeThread:
        return CodeThread(function, name)

    def signal(self, network: NetworkEnvironment | None = None) -> Signal:
        return Signal() if network is None else network.signal()

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


_MOST = 4
"""Largest number of snapshots written at a time.
More than one: a large one must not hold up others.
"""


class WriterThreads:
    """A few threads that write snapshots. They start with the first snapshot."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_MOST, "write state")
        self._is_closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run *work*, which must not raise. Called from any thread."""
        if not self._is_closed:
            self._executor.submit(work)

    def close(self) -> None:
        """Begin no further work, because the process ends. Work under way continues."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
