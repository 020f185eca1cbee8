"""SIGSTOP for longer than heartbeats may fail to come, then SIGCONT: who wakes up declares nobody
lost who lives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

import flinkray
from flinkray.client import ClusterClient
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.task_jobs import ends, task_job, waits
from flinkray.testing.waiting import wait_until
from tests.system.observer import live_actors
from tests.system.test_python_kills import all_run, executions

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "stopped-masters"
TIMEOUT = 4.0
CONFIGURATION = {
    "heartbeat.interval": "250 ms",
    "heartbeat.timeout": f"{TIMEOUT:g} s",
    "rpc.ask-timeout": "2 s",
    "jobmaster.max-failovers": "0",
    "restart-strategy.type": "none",
    "taskmanager.numberOfTaskSlots": "8",
    "taskmanager.slots-per-task-process": "8",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
}
MASTERS = ("Dispatcher", "ResourceManager")
ALL = (*MASTERS, "JobMaster", "SlotPool", "TaskExecutor", "TaskProcess")


@pytest.fixture(scope="module")
def client(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def pids() -> dict[int, str]:
    """Of the processes of the cluster, with their kinds."""
    here = cluster_namespace(CLUSTER_ID)
    return {a.pid: a.kind for a in live_actors() if a.namespace == here and a.kind in ALL}


def stop_and_go_on(victims: list[int], seconds: float) -> None:
    """How long they are stopped is the fault itself, and nothing to wait for."""
    until = time.monotonic() + seconds
    try:
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: time.monotonic() > until, 2 * seconds, "the end of the stop")
    finally:
        for pid in victims:
            os.kill(pid, signal.SIGCONT)


def test_processes_resumed_after_a_long_stop_declare_no_living_process_dead(
    client: ClusterClient,
) -> None:
    """First only the masters are stopped: TaskExecutors and JobMaster disconnect, and register
    again. Then all processes are stopped, as when their machine is suspended: each process is late
    for all of its deadlines."""
    job = client.submit(task_job(waits, parallelism=4))
    wait_until(lambda: all_run(job), 300, "all tasks")
    before = pids()
    assert set(before.values()) == set(ALL)

    for kinds in (MASTERS, ALL):
        stop_and_go_on([pid for pid, kind in pids().items() if kind in kinds], 1.25 * TIMEOUT)
        other = client.submit(task_job(ends))
        assert other.wait(timeout=300) is JobStatus.FINISHED  # all masters are at work again

        assert job.status() is JobStatus.RUNNING, (kinds, job.details().exceptions)
        assert {e.attempt_number for e in executions(job)} == {0}
        now = pids()
        for pid, kind in before.items():  # of task processes, one that has no task may end
            assert kind == "TaskProcess" or now.get(pid) == kind

    assert all_run(job)
    assert job.details().restarts == 0
    job.cancel()
    assert job.wait(timeout=300) is JobStatus.CANCELED
