"""Executors as children of the process that holds their slot: a JVM, but no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.spark.environment import JavaInstallation, SparkEnvironment
from flinkray.spark.executor_process import (
    ending_with_parent,
    executor_command,
    executor_variables,
    run_executor,
)
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot
from flinkray.testing.waiting import eventually

SLOT = ExecutorSlot(0, 0, "actor", "node", "127.0.0.1")
ENVIRONMENT = SparkEnvironment(
    JavaInstallation(Path("/java"), "17.0.9", "PATH"),
    Path("/spark"),
    (Path("/spark/jars/core.jar"),),
    raydp=None,
)


def launch(executor_id: str = "0", *arguments: str) -> ExecutorLaunch:
    return ExecutorLaunch(
        executor_id, "stage", None, ("-Xmx64m",), ("/mine.jar",), arguments, {"MINE": "1"}
    )


class Driver:
    """Has executors started that end at once."""

    def __init__(self, starts: int) -> None:
        self._starts = starts
        self.pids: list[int] = []
        self.ends: list[tuple[str, int, str]] = []

    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        return launch(str(len(self.pids)), "no.such.Class")

    async def executor_started(self, executor_id: str, pid: int) -> None:
        self.pids.append(pid)

    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        self.ends.append((executor_id, exit_code, how))
        return len(self.ends) < self._starts


async def test_end_of_an_executor_is_reported_and_a_wanted_executor_is_started_again(
    tmp_path: Path,
) -> None:
    driver = Driver(starts=2)

    await run_executor(driver, SLOT, str(tmp_path), str(tmp_path / "logs"))

    assert [(executor_id, code) for executor_id, code, _ in driver.ends] == [("0", 1), ("1", 1)]
    assert "no.such.Class" in driver.ends[0][2]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "flinkray-stage-executor-0.log",
        "flinkray-stage-executor-1.log",
    }


class LostDriver(Driver):
    """Is gone when it is told of a start."""

    async def executor_started(self, executor_id: str, pid: int) -> None:
        await super().executor_started(executor_id, pid)
        raise FlinkRayError("gone")


async def test_executor_is_killed_when_its_driver_is_gone(tmp_path: Path) -> None:
    driver = LostDriver(starts=1)

    with pytest.raises(FlinkRayError):
        await run_executor(driver, SLOT, str(tmp_path), str(tmp_path / "logs"))

    (pid,) = driver.pids
    await eventually(lambda: not psutil.pid_exists(pid), 50, "the end of the executor")


def test_executor_command_puts_the_launch_classes_behind_those_of_spark() -> None:
    command = " ".join(executor_command(launch("7", "Main", "--executor-id", "7"), ENVIRONMENT))

    assert command.endswith(
        f"/java/bin/java {ENVIRONMENT.class_data_option} -Xmx64m "
        "-cp /spark/jars/core.jar:/mine.jar Main --executor-id 7"
    )


def test_executor_keeps_its_files_in_its_own_folder(tmp_path: Path) -> None:
    variables = executor_variables(launch(), ENVIRONMENT, tmp_path)

    assert variables["SPARK_EXECUTOR_DIRS"] == str(tmp_path)
    assert (variables["SPARK_HOME"], variables["JAVA_HOME"]) == ("/spark", "/java")
    assert variables["MINE"] == "1"
    assert variables["PATH"] == os.environ["PATH"]


_PARENT = """
import subprocess, sys
from flinkray.spark.executor_process import ending_with_parent
child = subprocess.Popen(ending_with_parent(("/bin/sleep", "1000")))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_executor_ends_when_its_parent_process_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    child.wait(timeout=150)


def test_process_bound_to_its_parent_does_not_start_when_the_parent_is_gone() -> None:
    command = list(ending_with_parent((sys.executable, "-c", "print('started')")))
    command[command.index(str(os.getpid()))] = "1"  # a parent that was there a moment ago

    assert subprocess.run(command, capture_output=True, check=False).stdout == b""
