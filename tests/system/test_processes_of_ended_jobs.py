"""Processes of an ended job, on Ray: those without code of users wait for the next job."""

from __future__ import annotations

from pathlib import Path

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.core.ids import JobID
from flinkray.datastream import StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.task_jobs import task_job, waits
from flinkray.testing.waiting import wait_until

pytestmark = pytest.mark.ray

CLUSTER_ID = "ended-jobs"
DIRECTORY = RayDirectory(cluster_namespace(CLUSTER_ID))
KINDS = {"JobMaster", "SlotPool", "StreamCoordinator"}


def pids_of(job_id: JobID) -> dict[str, int]:
    """Return the ids of the job's JobMaster, SlotPool and StreamCoordinator processes, by kind."""
    found = {}
    for name in DIRECTORY.names(""):
        record = DIRECTORY.get(name)
        if record is not None and job_id.hex() in name:
            found[name.partition("-")[0]] = record.pid
    return found


def waiting() -> set[int]:
    """The processes that wait for a role and have had one."""
    records = [DIRECTORY.get(name) for name in DIRECTORY.ready_prestarted()]
    return {record.pid for record in records if record is not None and record.turn > 1}


def has_ended(pid: int) -> bool:
    return not Path("/proc", str(pid)).exists()


def run(job: JobHandle) -> dict[str, int]:
    """The processes of a job, which runs and is cancelled."""
    wait_until(lambda: job.status() is JobStatus.RUNNING, 300, "the job to run")
    wait_until(lambda: set(pids_of(job.job_id)) == KINDS, 300, "all its processes")
    pids = pids_of(job.job_id)
    job.cancel()
    assert job.wait(300) is JobStatus.CANCELED
    wait_until(lambda: not pids_of(job.job_id), 300, "its processes to have other names")
    return pids


def stream(client: ClusterClient, seen: Path) -> JobHandle:
    """A job whose source has splits, which its coordinator gives to its tasks; *seen* is there when
    the first record is."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    source = DataGeneratorSource(lambda n: n, 10**9, 100)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())

    def see(number: int) -> bool:
        seen.touch()
        return False

    numbers.filter(see).print()
    return client.job(env.execute_async("numbers").get_job_id())


def test_processes_of_an_ended_job_wait_for_the_next_unless_they_ran_user_code(
    ray_cluster: object, tmp_path: Path
) -> None:
    with flinkray.connect(cluster_id=CLUSTER_ID) as client:
        wait_until(lambda: len(DIRECTORY.ready_prestarted()) >= 3, 300, "three processes")
        first = run(client.submit(task_job(waits)))
        wait_until(lambda: set(first.values()) <= waiting(), 300, "all three to wait")

        job = stream(client, tmp_path / "seen")
        wait_until((tmp_path / "seen").exists, 300, "a record")
        second = run(job)
        coordinator = second.pop("StreamCoordinator")
        wait_until(lambda: set(second.values()) <= waiting(), 300, "the others to wait")
        wait_until(lambda: has_ended(coordinator), 300, "the coordinator's end")
    wait_until(lambda: all(map(has_ended, second.values())), 300, "their end with the cluster")
