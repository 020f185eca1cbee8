"""Elastic jobs on real Ray: they run with what there is, grow, and survive a lost TaskExecutor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, SchedulerMode
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.task_jobs import TaskJobBuilder, task_job, waits
from flinkray.testing.waiting import wait_until
from tests.datastream.growing import Growing
from tests.system.observer import kill
from tests.system.test_python_kills import pid_of

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "elastic"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.slots-per-task-process": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "slotmanager.number-of-slots.max": "4",
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout": "300 ms",
    "jobmanager.adaptive-scheduler.scaling-interval.min": "300 ms",
}
"""Two TaskExecutors at most."""


@pytest.fixture(scope="module")
def two_workers(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def executions(handle: JobHandle) -> list[ExecutionInfo]:
    return [e for vertex in handle.details().vertices for e in vertex.executions]


def until_runs_with(handle: JobHandle, parallelism: int) -> list[ExecutionInfo]:
    def runs() -> bool:
        found = executions(handle)
        states = {execution.state for execution in found}
        return len(found) == parallelism and states == {ExecutionState.RUNNING}

    try:
        wait_until(runs, 300, f"{parallelism} subtasks to run")
    except AssertionError as error:
        details = handle.details()
        states = [e.state.name for e in executions(handle)]
        story = f"{details.status.name} {states}, {details.pending_reason}, {details.exceptions}"
        raise AssertionError(f"{error}; {details.name}: {story}") from None
    return executions(handle)


def cancel(*jobs: JobHandle) -> None:
    for job in jobs:
        job.cancel()
    for job in jobs:
        assert job.wait(timeout=300) is JobStatus.CANCELED


def test_elastic_stream_is_rescaled_three_times_and_counts_each_number_once(
    two_workers: ClusterClient, tmp_path: Path
) -> None:
    """E2E-01: the stream grows from 1 to 2 and 4 subtasks as other jobs release their slots, and
    shrinks to 1 when the user asks for it."""
    others = [two_workers.submit(task_job(waits, parallelism=n)) for n in (1, 2)]
    for other, parallelism in zip(others, (1, 2), strict=True):
        until_runs_with(other, parallelism)
    program = Growing(two_workers, tmp_path)
    program.runs_with(1)
    cancel(others[0])
    program.runs_with(2)
    cancel(others[1])
    program.runs_with(4)
    program.resize(1)
    program.runs_with(1)
    program.ends_exactly_once(changes=3)
    assert program.job.details().restarts == 0, "no change is a failure"


def test_elastic_job_starts_with_free_slots_grows_and_survives_a_lost_executor(
    two_workers: ClusterClient,
) -> None:
    other = two_workers.submit(task_job(waits, parallelism=2))
    until_runs_with(other, 2)
    builder = TaskJobBuilder(
        "elastic",
        scheduler_mode=SchedulerMode.ADAPTIVE,
        restart_strategy=FixedDelayRestart(5, 0.0),
    )
    builder.add(waits, parallelism=4)
    handle = two_workers.submit(builder.build())

    until_runs_with(handle, 2)
    assert handle.details().restarts == 0

    cancel(other)
    grown = until_runs_with(handle, 4)
    assert handle.details().restarts == 0, "to grow is no failure"
    workers = sorted({match[0] for e in grown if (match := re.match(r"\S+", e.location or ""))})
    assert len(workers) == 2

    kill(pid_of("TaskExecutor", workers[0], CLUSTER_ID))
    wait_until(lambda: handle.details().restarts == 1, 300, "the loss to be noticed")
    after = until_runs_with(handle, 4)
    assert min(e.attempt_number for e in after) > max(e.attempt_number for e in grown)

    cancel(handle)
