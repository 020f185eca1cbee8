"""SIGKILL of what runs Python tasks while 64 of them run: only the regions that are hit restart."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.util.state import list_actors

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobGraph
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.task_jobs import TaskAttempt, TaskJobBuilder, task_job, waits
from flinkray.testing.waiting import wait_until
from tests.system.observer import kill

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "python-kills"
PAIRS = 32
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "8",
    "taskmanager.slots-per-task-process": "4",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "slotmanager.redundant-taskmanager-num": "1",
}


@pytest.fixture(scope="module")
def python_client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def pairs_that_wait(pids: Path) -> JobGraph:
    """64 tasks: 32 pairs, each a region of its own. *pids* gets a file for each process."""

    def notes_and_waits(task: TaskAttempt) -> Iterator[None]:
        (pids / str(os.getpid())).touch()
        yield from waits(task)

    builder = TaskJobBuilder("pairs", restart_strategy=FixedDelayRestart(3, 0.0))
    first = builder.add(notes_and_waits, name="first", parallelism=PAIRS)
    second = builder.add(notes_and_waits, name="second", parallelism=PAIRS)
    builder.connect(first, second, is_pointwise=True)
    return builder.build()


def executions(handle: JobHandle) -> list[ExecutionInfo]:
    return [e for vertex in handle.details().vertices for e in vertex.executions]


def all_run(handle: JobHandle) -> bool:
    found = executions(handle)
    return bool(found) and all(e.state is ExecutionState.RUNNING for e in found)


def pids_of(kind: str, cluster_id: str = CLUSTER_ID) -> dict[str, int]:
    """Of all processes of a kind of one cluster, by their names: others may end at this moment."""
    actors = list_actors(
        address=ray.get_runtime_context().gcs_address,
        filters=[
            ("state", "=", "ALIVE"),
            ("class_name", "=", kind),
            ("ray_namespace", "=", cluster_namespace(cluster_id)),
        ],
        detail=True,
        limit=1000,
    )
    return {actor.name or "": actor.pid or 0 for actor in actors}


def pid_of(kind: str, resource_id: str, cluster_id: str = CLUSTER_ID) -> int:
    """Of the process of a kind that belongs to a TaskExecutor, and which was started first: others
    wait."""
    pids = pids_of(kind, cluster_id)
    found = {name: pid for name, pid in pids.items() if name.endswith(resource_id)}
    return found[min(found, key=lambda name: (len(name), name))]


def task_executors_of(handle: JobHandle) -> dict[str, list[int]]:
    """TaskExecutor -> the pairs whose tasks are there."""
    found: dict[str, list[int]] = {}
    for execution in handle.details().vertices[0].executions:
        name = re.match(r"\S+", execution.location or "")
        assert name is not None
        found.setdefault(name[0], []).append(execution.subtask_index)
    return found


def run_64_and_kill(
    client: ClusterClient, kind: str, pids: Path
) -> tuple[JobHandle, set[int], float]:
    """The job after it has recovered, the pairs that were on the TaskExecutor that was hit, and the
    seconds until all ran again."""
    handle = client.submit(pairs_that_wait(pids))
    wait_until(lambda: all_run(handle), 300, "all 64 tasks to run")
    victim, pairs = sorted(task_executors_of(handle).items())[0]

    def has_recovered() -> bool:
        return any(e.attempt_number for e in executions(handle)) and all_run(handle)

    found = {pid for name, pid in pids_of(kind).items() if name.endswith(victim)}
    if kind == "TaskProcess":  # others of the TaskExecutor wait without tasks
        found &= {int(file.name) for file in pids.iterdir()}
    killed = time.time()
    kill(min(found))
    try:
        wait_until(has_recovered, 300, "all 64 tasks to run again")
    except AssertionError as error:
        details = handle.details()
        story = f"{details.status}, {details.pending_reason}, {details.exceptions}"
        raise AssertionError(f"{error}; {story}") from None
    running = [e.state_timestamps["RUNNING"] for e in executions(handle) if e.attempt_number]
    return handle, set(pairs), max(running) - killed


@pytest.mark.parametrize(
    "kind", [pytest.param("TaskExecutor", marks=pytest.mark.slow), "TaskProcess"]
)
def test_only_the_pipelined_regions_of_a_killed_process_restart(
    kind: str,
    python_client: ClusterClient,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    """FO-01."""
    handle, pairs_there, seconds = run_64_and_kill(python_client, kind, tmp_path)
    record_property("seconds from the kill to all RUNNING", seconds)

    details = handle.details()
    first, second = (
        {e.subtask_index for e in v.executions if e.attempt_number} for v in details.vertices
    )
    assert first == second, "both tasks of a pair restart, or none"
    if kind == "TaskExecutor":
        assert first == pairs_there
    else:
        assert 0 < len(first) <= 4, "only the slots of that process"
        assert first <= pairs_there
    assert details.restarts == 1
    assert any(kind in entry.text for entry in details.exceptions)

    handle.cancel()
    assert handle.wait(timeout=300) is JobStatus.CANCELED


def test_killed_task_process_is_replaced_by_the_waiting_prestarted_process(
    ray_cluster: object, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.touch()

    def notes_and_waits(task: TaskAttempt) -> Iterator[None]:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        yield from waits(task)

    def seen() -> list[int]:
        return [int(line) for line in pids.read_text().splitlines()]

    def waiting() -> set[int]:
        return set(pids_of("TaskProcess", "waiting").values()) - set(seen())

    configuration = {"taskmanager.prestarted-task-processes": "1"}
    with flinkray.connect(cluster_id="waiting", configuration=configuration) as client:
        job = task_job(notes_and_waits, restart_strategy=FixedDelayRestart(1, 0.0))
        handle = client.submit(job)
        wait_until(seen, 300, "the task to run")
        waited = wait_until(waiting, 300, "one that waits")
        kill(seen()[0])
        wait_until(lambda: len(seen()) == 2, 300, "the task to run again")
        assert seen()[1] in waited
        wait_until(lambda: waiting() - waited, 300, "another one that waits")
        handle.cancel()
        assert handle.wait(timeout=300) is JobStatus.CANCELED
