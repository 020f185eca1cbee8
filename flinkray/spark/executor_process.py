"""Runs a Spark executor as a child of the process that owns its slot."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from flinkray.core.private_files import create_folders
from flinkray.spark.environment import STANDALONE, SparkEnvironment, check_environment
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot
from flinkray.spark.jvm import Jvm

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
    """Interface to the driver of an executor, with the methods of
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
        process = _Executor(launch, session_directory, logs_directory)
        try:
            await driver.executor_started(launch.executor_id, process.pid)
            exit_code, how = await process.ended()
            is_needed = await driver.executor_ended(launch.executor_id, exit_code, how)
        finally:
            process.kill()


class _Executor:
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
