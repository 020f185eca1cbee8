"""Jobs of Spark and streams on a cluster of their own: its settings, and its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.core.ids import JobID
from flinkray.spark.processes import leftover_processes
from flinkray.testing.waiting import wait_until
from tests.system.observer import live_actors

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "jobmaster.max-failovers": "100000",
}
END = 600.0
"""Seconds within which something happens, also on a busy machine."""
KINDS = ("JobMaster", "SparkDriver", "StreamCoordinator", "TaskProcess")
"""Of processes that a job needs."""


@contextmanager
def own_cluster(cluster_id: str, storage: Path) -> Iterator[ClusterClient]:
    configuration = {**CONFIGURATION, "storage.dir": str(storage)}
    with flinkray.connect(cluster_id=cluster_id, configuration=configuration) as client:
        yield client


def processes(cluster_id: str, kind: str) -> list[int]:
    """Ids of those that a cluster has."""
    namespace = cluster_namespace(cluster_id)
    found = (a for a in live_actors() if a.namespace == namespace and a.kind == kind)
    return [actor.pid for actor in found if actor.pid]


def victims(cluster_id: str, job_id: JobID) -> dict[str, list[int]]:
    """Processes that the job needs, by kind; nothing else may run on the cluster."""
    found: dict[str, list[int]] = {}
    for actor in live_actors():
        is_ours = actor.namespace == cluster_namespace(cluster_id)
        if actor.name.startswith("raydp-executor-"):
            found.setdefault("Spark executor", []).append(actor.pid)
        elif is_ours and actor.pid and actor.kind in KINDS:
            found.setdefault(actor.kind, []).append(actor.pid)
    for process in leftover_processes(job_id):
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in " ".join(process.cmdline()):
                found.setdefault("Python worker of Spark", []).append(process.pid)
    return found


def running_job(cluster: ClusterClient) -> JobHandle:
    def found() -> list[JobHandle]:
        return [cluster.job(it.job_id) for it in cluster.list_jobs() if not it.status.is_terminal]

    return wait_until(found, END, "the job")[0]
