"""A stream job whose JobMaster dies goes on: the next one takes over what runs.

Jobs here may not restart, unless a test says so: what is restarted for a JobMaster fails.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from flinkray.client import JobHandle
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, FileSink
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.half_way import HalfWay, all_run, is_right, wait_for_tasks
from tests.datastream.quick_restarts import MASTERS_MAY_DIE, RESTARTS
from tests.datastream.tallies import expected, settings, tallies
from tests.datastream.threads import none_left

CONFIGURATION = MASTERS_MAY_DIE


def attempts(job: JobHandle) -> set[int]:
    """The numbers of the present attempts of all tasks."""
    return {e.attempt_number for v in job.details().vertices for e in v.executions}


def kill_job_master(cluster: ThreadedCluster, job: JobHandle, *others: str) -> None:
    """Together with these, and wait until the next one has taken over."""
    begun = job.details().status_timestamps[JobStatus.CREATED.name]
    cluster.crash_together(*others, "JobMaster")
    wait_until(lambda: is_taken_over(job, begun), 300, "the next JobMaster")


def is_taken_over(job: JobHandle, begun: float) -> bool:
    times = job.details().status_timestamps
    return JobStatus.RUNNING.name in times and times[JobStatus.CREATED.name] > begun


def test_tasks_run_on_when_their_job_master_dies_repeatedly(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """FO-01: with sources, keyed state, results that a client reads, and further checkpoints."""
    program = HalfWay(own_cluster.client, tmp_path / "program")
    wait_until(lambda: program.job.status() is JobStatus.RUNNING, 150, "the job to run")
    kill_job_master(own_cluster, program.job)
    program.take_checkpoints()
    for _ in range(2):
        kill_job_master(own_cluster, program.job)
        assert attempts(program.job) == {0}
    states = {e.state for v in program.job.details().vertices for e in v.executions}
    assert states == {ExecutionState.RUNNING}
    program.take_checkpoints()
    program.go_on()
    assert is_right(list(program.results))
    details = program.job.details()
    assert (details.restarts, details.failovers) == (0, 3)


def test_source_coordinator_that_dies_too_often_restarts_the_job(tmp_path: Path) -> None:
    """Here one death is too often; an enumerator may kill its process again and again."""
    configuration = {**CONFIGURATION, "jobmaster.max-failovers": "0"}
    with none_left(), threaded_cluster(str(tmp_path), configuration=configuration) as cluster:
        program = HalfWay(cluster.client, tmp_path / "program", settings_of=RESTARTS)
        program.take_checkpoints()
        cluster.crash("StreamCoordinator")
        wait_until(lambda: program.job.details().restarts == 1, 150, "the job to restart")
        program.go_on()
        assert is_right(list(program.results))


def test_only_the_region_of_a_lost_task_executor_restarts(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The regions share no channel."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=own_cluster.client)
    env.configure(Configuration.from_dict({**settings(tmp_path / "checkpoints"), **RESTARTS}))
    source = DataGeneratorSource(lambda n: n, 10**9, 1000.0)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    numbers.set_parallelism(4).map(lambda n: n).set_parallelism(4).sink_to(
        FileSink(tmp_path / "files")
    ).set_parallelism(4)
    job = own_cluster.client.job(env.execute_async("regions").get_job_id())
    wait_for_tasks(job)
    job.trigger_checkpoint(timeout=300)
    begun = job.details().status_timestamps[JobStatus.CREATED.name]
    own_cluster.crash("JobMaster")
    own_cluster.crash("TaskExecutor")
    wait_until(lambda: is_taken_over(job, begun) and all_run(job), 300, "all tasks to run again")
    numbers_of = [e.attempt_number for v in job.details().vertices for e in v.executions]
    assert sorted(numbers_of) == [0, 0, 1, 1]
    job.cancel()
    wait_until(lambda: job.status() is JobStatus.CANCELED, 300, "the job to be cancelled")


@pytest.mark.parametrize("seed", [1, 2])
def test_results_are_complete_and_unique_when_job_masters_die_at_random_times(
    seed: int, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04; no attempt number grows."""
    random = Random(seed)
    env = StreamExecutionEnvironment.get_execution_environment(cluster=own_cluster.client)
    env.configure(Configuration.from_dict(settings(tmp_path / "checkpoints", "50 ms")))
    env.set_parallelism(2)
    results = tallies(env, 20_000, 10_000.0, tmp_path / "witness").execute_and_collect()
    job = own_cluster.client.job(own_cluster.client.list_jobs()[0].job_id)
    wait_until(lambda: job.status() is JobStatus.RUNNING, 150, "the job to run")
    seen = set()
    with ThreadPoolExecutor() as threads:
        collected = threads.submit(set, results)
        for _ in range(6):
            moment = time.monotonic() + random.uniform(0.0, 0.2)
            wait_until(lambda: time.monotonic() > moment, 50, "another moment")  # noqa: B023
            if collected.done():
                break
            try:
                own_cluster.crash("JobMaster")
            except IndexError:  # the next one is not there yet
                continue
            seen |= attempts(job)
        assert collected.result() == expected(20_000)
    assert seen <= {0}
