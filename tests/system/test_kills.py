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
        if a.kind == "TaskExecutor" and a.worker_group == str(group) and a.bundle_index == 0
    )


def spark_driver_jvm(job_id: JobID, handle: JobHandle) -> int:
    driver = psutil.Process(actor("SparkDriver", job_id).pid)
    (jvm,) = (p for p in driver.children() if p in leftover_processes(job_id))
    return jvm.pid


def of_job(kind: str) -> Callable[[JobID, JobHandle], int]:
    return lambda job_id, handle: actor(kind, job_id).pid


def of_cluster(kind: str) -> Callable[[JobID, JobHandle], int]:
    return lambda job_id, handle: actor(kind).pid


def another(kind: str, job_id: JobID, pid: int) -> bool:
    """Whether the process of that kind that was killed has a successor."""
    return any(a.pid != pid for a in live_actors() if a.kind == kind and str(job_id) in a.name)


def running(handle: JobHandle) -> int:
    executions = [e for vertex in handle.details().vertices for e in vertex.executions]
    return sum(execution.state is ExecutionState.RUNNING for execution in executions)


@pytest.mark.slow  # test_spark_job and test_stage kill JobMasters and executors
def test_spark_job_without_restarts_outlives_slot_pool_executor_and_masters(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """ResourceManager and Dispatcher are dead as the job ends. The job's exceptions include the
    lost executor."""
    job = flinkray.spark_job(
        gate.pipeline(), parallelism=2, memory="1g", restart_strategy=flinkray.NoRestart()
    )
    handle = client.submit(job)
    wait_for_tasks(gate)
    before = handle.details().vertices[0].executions

    pool = of_job("SlotPool")(handle.job_id, handle)
    kill(pool)
    wait_until(lambda: another("SlotPool", handle.job_id, pool), 300, "another SlotPool")
    details = handle.details()
    assert (details.restarts, details.exceptions) == (0, ())
    assert [e.attempt_number for e in details.vertices[0].executions] == [0, 0]

    executor = spark_executor(handle.job_id, handle)
    kill(executor)

    def replaced() -> bool:
        execution = handle.details().vertices[0].executions[0]
        return execution.attempt_number == 1 and execution.executor_pid not in (None, executor)

    wait_until(replaced, 300, "the executor to be back in its slot")
    details = handle.details()
    assert details.restarts == 0
    assert details.exceptions

    assert [e.attempt_number for e in details.vertices[0].executions] == [1, 0]
    assert [e.location for e in details.vertices[0].executions] == [e.location for e in before]

    for master in ("ResourceManager", "Dispatcher"):
        kill(of_cluster(master)(handle.job_id, handle))
    gate.open()
    assert rows(handle) == expected_rows()
    assert sum(job.job_id == handle.job_id for job in client.list_jobs()) == 1
    assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.slow
def test_spark_job_returns_all_rows_after_kills_of_task_executor_driver_and_jvm(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    """Each of the first two kills restarts the job. The JVM is killed just before the tasks go on,
    so that its death is noticed late."""
    strategy = flinkray.FixedDelayRestart(3, 0.2)
    job = flinkray.spark_job(gate.pipeline(), memory="1g", restart_strategy=strategy)
    handle = client.submit(job)
    wait_for_tasks(gate, 1)

    for restarts, victim in enumerate((task_executor, of_job("SparkDriver")), start=1):
        kill(victim(handle.job_id, handle))
        wait_until(lambda n=restarts: handle.details().restarts == n, 300, "a restart")  # type: ignore[misc]
        begun = len(gate.waiting_tasks())
        wait_until(lambda: running(handle) == 1, 300, "an executor")
        wait_for_tasks(gate, begun + 1)
    kill(spark_driver_jvm(handle.job_id, handle))
    gate.open()

    assert rows(handle) == expected_rows()
    assert sum(job.job_id == handle.job_id for job in client.list_jobs()) == 1
    assert_leaves_nothing(handle.job_id, resources_before)


@pytest.mark.slow
def test_job_without_restarts_fails_with_the_cause_after_a_process_is_killed(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    victims = {"TaskExecutor": task_executor, "Spark driver": of_job("SparkDriver")}
    handles = {
        words: client.submit(
            flinkray.spark_job(gate.pipeline(), memory="1g", restart_strategy=flinkray.NoRestart())
        )
        for words in victims
    }
    wait_for_tasks(gate, 2)

    for words, handle in handles.items():
        kill(victims[words](handle.job_id, handle))

    for words, handle in handles.items():
        with pytest.raises(JobExecutionError, match=words):
            handle.result(timeout=300)
    for handle in handles.values():
        assert_leaves_nothing(handle.job_id, resources_before)
