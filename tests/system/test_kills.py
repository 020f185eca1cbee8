"""SIGKILL of each kind of process while a job runs: it ends right, once, and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.core.ids import JobID
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.spark.processes import leftover_processes
from flinkray.testing.waiting import wait_until
from tests.system.observer import actor, assert_leaves_nothing, kill, live_actors
from tests.system.pipelines import Gate, expected_rows
from tests.system.test_spark_job import rows, wait_for_tasks

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.kill]


def spark_executor(job_id: JobID, handle: JobHandle) -> int:
    pid = handle.details().vertices[0].executions[0].executor_pid
    assert pid is not None
    return pid


def task_executor(job_id: JobID, handle: JobHandle) -> int:
    (group,) = {handle.details().worker_group}
    assert group is not None
    return next(
        a.pid
        for a in live_actors()
        if a.kind == "TaskExecutor" and a.worker_group == str(group) and a.bundle_index == 1
    )


def spark_driver_jvm(job_id: JobID, handle: JobHandle) -> int:
    driver = psutil.Process(actor("SparkDriver", job_id).pid)
    (jvm,) = (p for p in driver.children() if p in leftover_processes(job_id))
    return jvm.pid


def of_job(kind: str) -> Callable[[JobID, JobHandle], int]:
    return lambda job_id, handle: actor(kind, job_id).pid


def of_cluster(kind: str) -> Callable[[JobID, JobHandle], int]:
    return lambda job_id, handle: actor(kind).pid


VICTIMS = {
    "spark executor": spark_executor,
    "task executor": task_executor,
    "spark driver": of_job("SparkDriver"),
    "spark driver's JVM": spark_driver_jvm,
    "slot pool": of_job("SlotPool"),
    "resource manager": of_cluster("ResourceManager"),
    "dispatcher": of_cluster("Dispatcher"),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_job_ends_right_after_a_kill_of(
    victim: str, client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    handle = client.submit(flinkray.spark_job(gate.pipeline(), parallelism=2, memory="1g"))
    wait_for_tasks(gate)

    kill(VICTIMS[victim](handle.job_id, handle))
    gate.open()

    assert rows(handle) == expected_rows()
    assert sum(job.job_id == handle.job_id for job in client.list_jobs()) == 1
    assert_leaves_nothing(handle.job_id, resources_before)


def test_job_keeps_its_slots_after_a_kill_of_its_job_master(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """The next one runs the job again, in the same TaskExecutors."""
    handle = client.submit(flinkray.spark_job(gate.pipeline(), parallelism=2, memory="1g"))
    wait_for_tasks(gate)
    group = handle.details().worker_group
    assert group is not None

    def task_executors() -> set[int]:
        of_group = (a for a in live_actors() if a.worker_group == str(group))
        return {a.pid for a in of_group if a.kind == "TaskExecutor"}

    before = task_executors()
    assert len(before) == 2
    kill(actor("JobMaster", handle.job_id).pid)

    def runs_again() -> bool:
        details = handle.details()
        executions = [e for vertex in details.vertices for e in vertex.executions]
        running = [e for e in executions if e.state is ExecutionState.RUNNING]
        return details.restarts == 1 and len(running) == 2

    wait_until(runs_again, 90, "the job to run again")
    assert handle.details().worker_group == group
    assert task_executors() == before
    gate.open()
    assert rows(handle) == expected_rows()
    assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.parametrize("victim", ["task executor", "spark driver"])
def test_job_without_restarts_fails_with_the_cause_after_a_kill_of(
    victim: str, client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    job = flinkray.spark_job(
        gate.pipeline(), parallelism=2, memory="1g", restart_strategy=flinkray.NoRestart()
    )
    handle = client.submit(job)
    wait_for_tasks(gate)

    kill(VICTIMS[victim](handle.job_id, handle))

    words = {"task executor": "TaskExecutor", "spark driver": "Spark driver"}
    with pytest.raises(JobExecutionError, match=words[victim]):
        handle.result(timeout=120)
    assert_leaves_nothing(handle.job_id, resources_before)


def test_job_without_restarts_runs_on_after_a_kill_of_its_slot_pool(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    job = flinkray.spark_job(
        gate.pipeline(), parallelism=2, memory="1g", restart_strategy=flinkray.NoRestart()
    )
    handle = client.submit(job)
    wait_for_tasks(gate)
    before = handle.details().vertices[0].executions
    pid = actor("SlotPool", handle.job_id).pid

    kill(pid)

    def replaced() -> bool:
        pools = [a for a in live_actors() if a.kind == "SlotPool"]
        return any(str(handle.job_id) in a.name and a.pid != pid for a in pools)

    wait_until(replaced, 90, "another SlotPool")
    gate.open()
    assert rows(handle) == expected_rows()
    after = handle.details()
    assert (after.restarts, after.exceptions) == (0, ())
    assert [e.attempt_number for e in after.vertices[0].executions] == [0, 0]
    assert [e.location for e in after.vertices[0].executions] == [e.location for e in before]
    assert_leaves_nothing(handle.job_id, resources_before)


def test_lost_executor_is_in_the_jobs_exceptions_and_no_restart(
    client: ClusterClient, gate: Gate
) -> None:
    handle = client.submit(flinkray.spark_job(gate.pipeline(), parallelism=2, memory="1g"))
    wait_for_tasks(gate)
    pid = spark_executor(handle.job_id, handle)

    kill(pid)

    def replaced() -> bool:
        execution = handle.details().vertices[0].executions[0]
        return execution.attempt_number == 1 and execution.executor_pid not in (None, pid)

    wait_until(replaced, 90, "the executor to be back in its slot")
    details = handle.details()
    assert details.restarts == 0
    assert details.exceptions
    gate.open()
    assert rows(handle) == expected_rows()
