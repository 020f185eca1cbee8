"""Executors of Spark's standalone host: the driver decides which executors are launched, and
TaskExecutors start and watch their processes.

A TaskExecutor asks the driver for a launch, runs the executor as a child process, and reports its
start and its end. The driver then decides whether another executor is started in the slot.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flinkray.core.errors import FlinkRayError
from flinkray.core.private_files import create_folders
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo
from flinkray.spark.environment import STANDALONE, SparkEnvironment, check_environment
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot
from flinkray.spark.jvm import Jvm

# --- in the driver: which executors are launched --------------------------------------------------


class StageEndedError(FlinkRayError):
    """Raised when an executor is to be started for a stage that has ended or is ending."""


@dataclass(slots=True)
class _LaunchedExecutor:
    slot: ExecutorSlot
    pid: int | None = None
    was_registered: bool = False
    has_ended: bool = False


class ExecutorDesk:
    """The part of a Spark driver from which TaskExecutors learn which executor to start in a slot.
    A TaskExecutor asks for a launch (command line and environment), and reports the start and the
    end of the executor's process. Used from any thread."""

    def __init__(self, on_failed: Callable[[str], None]) -> None:
        """Create a desk that gives no launches before :meth:`open`. *on_failed* is called at most
        once per slot, with a text that says why the slot has no executor and gets none."""
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._executors: dict[str, _LaunchedExecutor] = {}
        self._failures: dict[int, int] = {}
        """Number of consecutive executors that ended before they registered, by subtask."""
        self.application: Future[Callable[[str, ExecutorSlot], ExecutorLaunch]] = Future()
        """Function that makes the launch of an executor, from its id and its slot.

        The future is done when the application takes executors, and fails if it never will.
        """

    def open(self, launch_of: Callable[[str, ExecutorSlot], ExecutorLaunch]) -> None:
        """Set the function that makes launches, so that :meth:`launch` works from now on. Does
        nothing after :meth:`close`."""
        with suppress(InvalidStateError):  # closed in the meantime
            self.application.set_result(launch_of)

    def close(self) -> None:
        """Refuse all launches, because the stage has ended before it was open. Does nothing after
        :meth:`open`."""
        with suppress(InvalidStateError):
            self.application.set_exception(StageEndedError("the Spark stage has ended"))

    def launch(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """Return the launch (command line and environment) of a new executor for a slot. Raises
        TimeoutError: neither :meth:`open` nor :meth:`close` was called yet. StageEndedError: the
        desk was closed before it was opened."""
        launch_of = self.application.result(timeout=0)
        with self._lock:
            executor_id = str(len(self._executors))
            self._executors[executor_id] = _LaunchedExecutor(slot)
        return launch_of(executor_id, slot)

    def started(self, executor_id: str, pid: int) -> None:
        with self._lock:
            self._executors[executor_id].pid = pid

    def ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """Note that an executor's process has ended; return whether to start another executor in
        its slot. True: the executor ended with an error before it registered with Spark, for the
        first time in this slot. If the next executor ends in the same way, the stage fails."""
        with self._lock:
            executor = self._executors[executor_id]
            subtask = executor.slot.subtask_index
            if exit_code == 0:  # the driver told it to end, as when a session stops
                return False
            executor.has_ended = True
            if executor.was_registered:
                return False
            failures = self._failures[subtask] = self._failures.get(subtask, 0) + 1
            if failures == 1:
                return True
        if failures == 2:
            self._on_failed(
                f"the executor of slot {subtask} ended before it registered, twice: {how}"
            )
        return False

    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        """Return those executors of *active* (Spark's ids of the executors that are registered now)
        whose processes run."""
        found = []
        with self._lock:
            for executor_id in active:
                executor = self._executors.get(executor_id)
                if executor is None or executor.pid is None or executor.has_ended:
                    continue
                slot = executor.slot
                executor.was_registered = True
                self._failures.pop(slot.subtask_index, None)
                found.append(
                    SparkExecutorInfo(
                        subtask_index=slot.subtask_index,
                        executor_id=executor_id,
                        actor_id=slot.actor_id,
                        node_id=slot.node_id,
                        pid=executor.pid,
                        bundle_index=slot.bundle_index,
                    )
                )
        return tuple(sorted(found, key=lambda info: (info.bundle_index, int(info.executor_id))))


# --- in the process that owns a slot: the executor's process --------------------------------------

_ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Python program that runs a command which Linux kills when the thread that started it ends.

It uses PR_SET_PDEATHSIG of prctl(2). Without prctl, an executor ends when it misses its driver.
"""


class ExecutorDriver(Protocol):
    """A Spark driver as the TaskExecutors of its executors see the driver: the calls of
    :class:`SparkExecutorsGateway`."""

    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch: ...

    async def executor_started(self, executor_id: str, pid: int) -> None: ...

    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool: ...


async def run_executor(
    driver: ExecutorDriver, slot: ExecutorSlot, session_directory: str, logs_directory: str
) -> None:
    """Run executors in a slot, one after the other, until the driver wants no other one there.

    If this coroutine is cancelled, the executor's process is killed; only processes that it has
    forked may be left. Must run on an event loop whose thread lives as long as its process.

    Raises:
        UnsupportedEnvironmentError, SparkStartError: the executor cannot be started on this node.
        RpcError: the driver does not answer (any more).
    """
    is_needed = True
    while is_needed:
        launch = await driver.launch_executor(slot)
        process = _ExecutorProcess(launch, session_directory, logs_directory)
        try:
            await driver.executor_started(launch.executor_id, process.pid)
            exit_code, how = await process.ended()
            is_needed = await driver.executor_ended(launch.executor_id, exit_code, how)
        finally:
            process.kill()


class _ExecutorProcess:
    def __init__(self, launch: ExecutorLaunch, session_directory: str, logs_directory: str) -> None:
        environment = check_environment(launch.java_home, host=STANDALONE)
        name = f"{launch.stage_name}-executor-{launch.executor_id}"
        folder = Path(session_directory, launch.stage_name, f"executor-{launch.executor_id}")
        create_folders(folder)
        self._jvm = Jvm(
            executor_command(launch, environment),
            executor_variables(launch, environment, folder),
            Path(logs_directory, f"flinkray-{name}.log"),
            folder,
        )
        self.pid = self._jvm.pid
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._jvm.on_exit(lambda: _tell(loop, self._set_ended))

    async def ended(self) -> tuple[int, str]:
        await self._ended
        exit_code = self._jvm.exit_code
        assert exit_code is not None
        return exit_code, self._jvm.describe_end()

    def kill(self) -> None:
        """Kill the executor at once."""
        self._jvm.kill()

    def _set_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def executor_command(launch: ExecutorLaunch, environment: SparkEnvironment) -> tuple[str, ...]:
    """Return the command line of an executor. *environment*: the Spark environment of this node."""
    java = (
        str(environment.java.executable),
        environment.class_data_option,
        *launch.java_options,
        "-cp",
        ":".join([environment.class_path, *launch.class_path]),
        *launch.arguments,
    )
    return ending_with_parent(java)


def ending_with_parent(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return *command* with a wrapper, so that Linux kills the process when the thread that started
    it ends. On other systems: *command* unchanged."""
    if sys.platform != "linux":
        return command
    return (sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *command)


def executor_variables(
    launch: ExecutorLaunch, environment: SparkEnvironment, folder: Path
) -> dict[str, str]:
    """Return the environment variables of an executor. *folder*: directory of its files."""
    inherited = {key: value for key, value in os.environ.items() if key != "SPARK_CONF_DIR"}
    return {
        **inherited,
        "SPARK_HOME": str(environment.spark_home),
        "JAVA_HOME": str(environment.java.home),
        "SPARK_EXECUTOR_DIRS": str(folder),
        **launch.environment,
    }


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call *callback* on the thread of *loop*; do nothing if the loop was closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return
