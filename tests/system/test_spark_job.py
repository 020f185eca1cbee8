"""Spark jobs on a real cluster, as a user runs them."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import JobCancelledError, JobExecutionError
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.spark.environment import RAYDP
from flinkray.testing.waiting import wait_until
from tests.spark.hosts import SPARK_HOST
from tests.system.observer import (
    assert_leaves_nothing,
    live_actors,
    spark_executors,
    worker_groups,
)
from tests.system.pipelines import Gate, doubled, expected_rows, with_ballast

pytestmark = [pytest.mark.ray, pytest.mark.spark]


def rows(handle: JobHandle) -> list[tuple[int, int]]:
    table = handle.result(timeout=300).to_arrow().to_pylist()
    return sorted((row["id"], row["twice"]) for row in table)


def wait_for_tasks(gate: Gate, count: int = 2) -> None:
    wait_until(lambda: len(gate.waiting_tasks()) >= count, 300, f"{count} Spark tasks to begin")


def active_tasks(handle: JobHandle) -> int:
    return sum(s.active_tasks for v in handle.details().vertices for s in v.active_stages)


@pytest.mark.smoke
def test_client_reads_the_dataframe_of_a_spark_job_that_frees_all_its_resources(
    client: ClusterClient, resources_before: dict[str, float]
) -> None:
    """The function is larger than a message and therefore sent as a blob."""
    function = with_ballast(doubled, 30_000_000)
    handle = client.submit(flinkray.spark_job(function, parallelism=2, cpu=1, memory="1g"))

    assert rows(handle) == expected_rows()

    assert handle.status() is JobStatus.FINISHED
    assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.skipif(SPARK_HOST != RAYDP, reason="there all jobs are")
def test_standalone_spark_job_survives_an_executors_death_and_frees_everything(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """The TaskExecutor, which started the executor, starts another executor in the slot."""
    conf = {"spark.host": "standalone"}
    job = flinkray.spark_job(gate.pipeline(), parallelism=1, memory="1g", spark_conf=conf)
    handle = client.submit(job)
    wait_for_tasks(gate, 1)
    (vertex,) = handle.details().vertices
    (execution,) = vertex.executions
    pid = execution.executor_pid
    assert pid is not None
    assert psutil.Process(pid).ppid() in {actor.pid for actor in live_actors()}

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), 150, "the executor's end")
    gate.open()

    assert rows(handle) == expected_rows()
    (vertex,) = handle.details().vertices
    (execution,) = vertex.executions
    assert execution.attempt_number == 1
    assert handle.details().restarts == 0
    assert_leaves_nothing(handle.job_id, resources_before)


def test_spark_stage_keeps_its_tasks_when_its_job_master_is_killed(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """HA-27 for Spark: slots, driver, executors and tasks stay the same."""
    handle = client.submit(flinkray.spark_job(gate.pipeline(), parallelism=2, memory="1g"))
    wait_for_tasks(gate)

    def processes(kind: str) -> list[int]:
        of_job = (it for it in live_actors() if handle.job_id.hex() in it.name)
        return sorted(actor.pid for actor in of_job if actor.kind == kind)

    def executors() -> list[tuple[int, int | None]]:
        vertices = handle.details().vertices  # none while there is no JobMaster
        return [(e.attempt_number, e.executor_pid) for v in vertices for e in v.executions]

    def slots() -> list[int]:
        (group,) = worker_groups(handle.job_id)
        actors = live_actors()
        return sorted(a.pid for a in actors if a.worker_group == group and a.kind == "TaskExecutor")

    (job_master,), driver, before = processes("JobMaster"), processes("SparkDriver"), executors()
    task_executors = slots()
    assert len(task_executors) == 2
    tasks = gate.waiting_tasks()
    os.kill(job_master, signal.SIGKILL)
    wait_until(lambda: handle.details().failovers == 1, 150, "the next JobMaster")
    wait_until(lambda: executors() == before, 150, "the same executors")
    assert processes("SparkDriver") == driver
    assert slots() == task_executors
    assert gate.waiting_tasks() == tasks

    gate.open()
    assert rows(handle) == expected_rows()
    details = handle.details()
    assert (details.restarts, details.failovers) == (0, 1)
    assert_leaves_nothing(handle.job_id, resources_before)


def test_concurrent_jobs_use_their_own_slots_and_show_progress(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """Ray's state API shows every executor in the bundle of a slot of its job, none elsewhere."""
    handles = [
        client.submit(flinkray.spark_job(gate.pipeline(), name=name, parallelism=2, memory="1g"))
        for name in ("first", "second")
    ]
    wait_for_tasks(gate, 4)

    seen = set()
    by_id = {actor.actor_id: actor for actor in live_actors()}
    for handle in handles:
        details = handle.details()
        (group,) = worker_groups(handle.job_id)
        (vertex,) = details.vertices
        assert len(vertex.executions) == 2
        for execution in vertex.executions:
            assert execution.state is ExecutionState.RUNNING
            assert execution.executor_actor_id is not None
            executor = by_id[execution.executor_actor_id]
            assert executor.worker_group == group
            assert executor.bundle_index == execution.subtask_index
            assert execution.executor_pid is not None
            if SPARK_HOST == RAYDP:
                assert executor.pid == execution.executor_pid
            else:
                assert executor.pid == psutil.Process(execution.executor_pid).ppid()
            seen.add(executor.actor_id)
    if SPARK_HOST == RAYDP:
        assert {executor.actor_id for executor in spark_executors()} == seen
    wait_until(
        lambda: [active_tasks(handle) for handle in handles] == [2, 2],
        50,
        "two active tasks in the details of each job",
    )

    gate.open()
    assert [rows(handle) for handle in handles] == [expected_rows()] * 2
    for handle in handles:
        (vertex,) = handle.details().vertices
        assert vertex.completed_tasks >= 4
        assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.slow
def test_spark_job_cancelled_while_running_frees_all_its_processes_and_resources(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    handle = client.submit(flinkray.spark_job(gate.pipeline(), memory="1g"))
    wait_for_tasks(gate, 1)

    handle.cancel()

    with pytest.raises(JobCancelledError):
        handle.result(timeout=300)
    assert_leaves_nothing(handle.job_id, resources_before)


def test_spark_job_cancelled_before_it_has_slots_frees_all_processes_and_resources(
    client: ClusterClient, resources_before: dict[str, float]
) -> None:
    handle = client.submit(flinkray.spark_job(doubled, parallelism=2, memory="1g"))
    handle.cancel()

    with pytest.raises(JobCancelledError):
        handle.result(timeout=300)
    assert_leaves_nothing(handle.job_id, resources_before)


def test_error_or_wrong_result_of_a_spark_function_fails_the_job_with_the_cause(
    client: ClusterClient, resources_before: dict[str, float]
) -> None:
    """An error is reported with its traceback. A wrong return value is reported with the accepted
    types, and the job is not restarted."""

    def broken(spark: Any) -> Any:
        spark.range(3).count()
        raise ValueError("no such airport: XYZ")

    def answer(spark: Any) -> Any:
        return spark.range(3).collect()

    job = flinkray.spark_job(broken, restart_strategy=flinkray.NoRestart())
    failing, answering = client.submit(job), client.submit(flinkray.spark_job(answer))

    with pytest.raises(JobExecutionError, match="no such airport: XYZ") as caught:
        failing.result(timeout=300)
    traceback = caught.value.remote_traceback or ""
    assert "in broken" in traceback
    assert "flinkray/spark/stage.py" not in traceback
    returned = r"returned a list \(\[Row\(id=0\), Row\(id=1\), Row\(id=2\)\]\).*DataFrame.*None"
    with pytest.raises(JobExecutionError, match=returned):
        answering.result(timeout=300)
    assert answering.details().restarts == 0
    for handle in (failing, answering):
        assert_leaves_nothing(handle.job_id, resources_before)


def test_job_with_a_slot_larger_than_any_node_fails_and_names_the_largest_node(
    client: ClusterClient, resources_before: dict[str, float]
) -> None:
    handle = client.submit(flinkray.spark_job(doubled, parallelism=1, cpu=1000, memory="1g"))

    with pytest.raises(JobExecutionError, match="1000 CPU") as caught:
        handle.result(timeout=300)
    assert "largest node" in str(caught.value)
    assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.slow
def test_job_that_waits_for_resources_says_why_within_five_seconds(
    client: ClusterClient, gate: Gate
) -> None:
    first = client.submit(flinkray.spark_job(gate.pipeline(), cpu=3, memory="1g"))
    wait_for_tasks(gate, 1)
    second = client.submit(flinkray.spark_job(doubled, cpu=3, memory="1g"))

    reason = wait_until(lambda: second.details().pending_reason, 25, "the reason of waiting")

    assert "1 slot " in reason
    assert "3 CPU" in reason
    gate.open()
    assert rows(first) == expected_rows()
    assert rows(second) == expected_rows()
