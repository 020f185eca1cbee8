"""Jobs that fail while they are deployed or cancelled, as their users see it: by the client's
``exceptions()`` and the command ``flinkray info``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.client.cli import execute
from flinkray.client.ray_runtime import present_ray
from flinkray.core.errors import JobCancelledError, JobExecutionError
from flinkray.datastream import MapFunction, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.task_jobs import (
    TaskAttempt,
    TaskFunction,
    TaskJobBuilder,
    task_job,
    waits,
)
from flinkray.testing.waiting import wait_until
from tests.datastream.stuck_functions import run_on_without_end

pytestmark = [pytest.mark.ray]

CLUSTER_ID = "failing-jobs"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "4",
    "taskmanager.slots-per-task-process": "4",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "task.cancellation.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "0 s",
}
REBUILT = "the function could not be rebuilt on the cluster (ImportError: no such library here)"

Info = Callable[..., list[str]]


@pytest.fixture(scope="module")
def client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


@pytest.fixture
def info(capsys: pytest.CaptureFixture[str]) -> Info:
    """The lines of ``flinkray info``."""

    def run(handle: JobHandle, *options: str) -> list[str]:
        capsys.readouterr()
        assert execute(["info", str(handle.job_id), "--cluster-id", CLUSTER_ID, *options]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def cannot_leave(task: TaskAttempt) -> Iterator[None]:
    try:
        yield from waits(task)
    finally:
        raise OSError("cannot put my things away")


def dies_when_it_leaves(task: TaskAttempt) -> Iterator[None]:
    try:
        yield from waits(task)
    finally:
        os._exit(3)


class Unloadable:
    """A function of a library that the cluster has not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return missing_library, ()

    def __call__(self, task: TaskAttempt) -> None: ...


def missing_library() -> None:
    raise ImportError("no such library here")


def pair(first: TaskFunction, second: TaskFunction, restarts: int = 0) -> Any:
    """One region: two subtasks of each, the second ones read from the first ones."""
    builder = TaskJobBuilder("pair", restart_strategy=FixedDelayRestart(restarts, 0.0))
    one, other = (
        builder.add(function, name=name, parallelism=2)
        for name, function in (("first", first), ("second", second))
    )
    builder.connect(one, other)
    return builder.build()


def states(handle: JobHandle) -> dict[str, set[ExecutionState]]:
    vertices = handle.details().vertices
    return {vertex.name: {e.state for e in vertex.executions} for vertex in vertices}


def until_all_run(handle: JobHandle) -> None:
    running = {"first": {ExecutionState.RUNNING}, "second": {ExecutionState.RUNNING}}
    wait_until(lambda: states(handle) == running, 300, "all tasks to run")


def failures(lines: list[str]) -> list[str]:
    """Of the output of ``flinkray info``, from the first failure on."""
    return lines[[line.startswith("failure at") for line in lines].index(True) :]


def test_code_that_cannot_be_loaded_fails_the_job_at_once_and_says_where(
    client: ClusterClient, info: Info
) -> None:
    """The job is not restarted, because a restart cannot help."""
    handle = client.submit(pair(waits, Unloadable(), restarts=3))

    with pytest.raises(JobExecutionError, match="no such library here") as raised:
        handle.result(timeout=300)
    assert "in missing_library" in (raised.value.remote_traceback or "")
    assert handle.details().restarts == 0
    assert states(handle)["first"] == {ExecutionState.CANCELED}
    assert ExecutionState.FAILED in states(handle)["second"]

    (failure,) = handle.exceptions()
    assert REBUILT in failure.text
    assert failure.task in {"second (1/2)", "second (2/2)"}
    assert (failure.location or "").startswith("TaskExecutor-0-0-")
    assert "in missing_library" in (failure.traceback or "")

    shown = failures(info(handle))
    assert f": {failure.task} TaskExecutor-0-0-" in shown[0]
    assert [line for line in shown if REBUILT in line] == [f"  {failure.text}"]
    assert shown[-1] == "  traceback: with --verbose"
    assert any("in missing_library" in line for line in info(handle, "--verbose"))


class CannotOpen(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        raise OSError("cannot open my database")

    def map(self, value: Any) -> Any:
        return value


class OpensForEver(MapFunction[Any, Any]):
    """Until it is interrupted."""

    def open(self, runtime_context: Any) -> None:
        run_on_without_end()

    def map(self, value: Any) -> Any:
        return value


def test_error_in_open_fails_the_job_after_its_restarts_while_another_open_hangs(
    client: ClusterClient, info: Info
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(2)
    numbers = env.from_sequence(1, 10).map(OpensForEver()).name("slow").rebalance()
    numbers.map(CannotOpen()).name("fast").sink_to(DiscardingSink())
    handle = client.job(env.execute_async("opens").get_job_id())

    with pytest.raises(JobExecutionError, match="cannot open my database"):
        handle.result(timeout=300)
    assert handle.details().restarts == 1
    found = handle.exceptions()
    assert len(found) == 2
    for failure in found:
        assert failure.text.startswith("Traceback")
        assert "in open" in failure.text
        assert "OSError: cannot open my database\nin operator 'fast', subtask" in failure.text
        assert (failure.task or "").startswith("fast -> ")
    slow = next(name for name in states(handle) if name.endswith("slow"))
    assert states(handle)[slow] == {ExecutionState.CANCELED}
    lines = info(handle)
    assert "status      FAILED" in lines
    assert lines.count("  OSError: cannot open my database") == 2


def test_error_during_cancellation_only_goes_to_rays_log_and_the_job_is_canceled(
    client: ClusterClient, info: Info
) -> None:
    handle = client.submit(pair(waits, cannot_leave))
    until_all_run(handle)

    handle.cancel()

    with pytest.raises(JobCancelledError):
        handle.result(timeout=300)
    assert states(handle) == {name: {ExecutionState.CANCELED} for name in ("first", "second")}
    assert handle.exceptions() == ()
    lines = info(handle)
    assert "status      CANCELED" in lines
    assert not any(line.startswith("failure") for line in lines)

    session_dir = present_ray().session_dir
    assert session_dir is not None

    def logged() -> bool:
        logs = (
            file.read_text(errors="replace") for file in Path(session_dir, "logs").glob("worker-*")
        )
        return any(
            "task second (1/2)#0 could not be closed" in log and "cannot put my things away" in log
            for log in logs
        )

    wait_until(logged, 150, "the error in Ray's logs")


def test_error_in_a_task_cancelled_by_a_failure_does_not_hide_the_cause(
    client: ClusterClient, info: Info, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def fails(task: TaskAttempt) -> Iterator[None]:
        while not gate.exists():
            yield
        raise ValueError("the cause")

    handle = client.submit(pair(fails, cannot_leave))
    until_all_run(handle)
    gate.touch()

    with pytest.raises(JobExecutionError, match="the cause"):
        handle.result(timeout=300)
    (failure,) = handle.exceptions()
    for entry in (failure, *failure.concurrent):
        assert "ValueError: the cause" in entry.text
    assert states(handle)["second"] == {ExecutionState.CANCELED}
    assert "things away" not in "\n".join(info(handle, "--verbose"))


def test_death_of_a_task_process_during_cancellation_is_shown_once_for_all_tasks(
    client: ClusterClient, info: Info
) -> None:
    handle = client.submit(pair(waits, dies_when_it_leaves))
    until_all_run(handle)

    handle.cancel()

    assert handle.wait(timeout=300) is JobStatus.CANCELED
    (failure,) = handle.exceptions()
    assert failure.text.startswith("the task process TaskProcess-")
    assert {entry.text for entry in failure.concurrent} == {failure.text}
    shown = failures(info(handle))
    assert sum("died" in line for line in shown) == 1, shown
    assert shown[-1].startswith("  and ")
    assert shown[-1].endswith(": the same")


def test_logs_command_shows_the_output_of_a_task(
    client: ClusterClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is in one of many files of Ray, whose names do not tell the job."""

    def noisy(task: TaskAttempt) -> None:
        print("printed by a task")  # noqa: T201
        print("to standard error", file=sys.stderr)  # noqa: T201

    handle = client.submit(task_job(noisy))
    handle.result(timeout=300)
    capsys.readouterr()
    line = ["logs", handle.job_id.hex()[:12], "--cluster-id", CLUSTER_ID]
    assert execute([*line, "--output", "--lines", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    name = f"/flinkray-{handle.job_id}-TaskProcess-"
    (head,) = (number for number, text in enumerate(shown) if name in text)
    assert shown[head + 1] == "printed by a task"
    assert execute(line) == 0
    assert "to standard error" in capsys.readouterr().out.splitlines()
