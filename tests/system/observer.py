"""What Ray and the operating system say of a job: the outside view that tests hold the job to."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

import ray
from ray.util.placement_group import placement_group_table
from ray.util.state import list_actors
from ray.util.state.common import ActorState

from flinkray.core.ids import JobID
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.spark.processes import leftover_processes
from flinkray.testing.waiting import wait_until

CLUSTER_ID = "system"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
"""Of the cluster under test: other tests may have clusters on the same Ray."""

LEAVE_TIME = 10.0
"""Seconds in which everything of an ended job must be gone."""


@dataclass(frozen=True)
class Actor:
    name: str
    kind: str
    namespace: str
    pid: int
    actor_id: str
    node_id: str
    worker_group: str | None
    bundle_index: int | None
    resources: dict[str, float]
    """By Ray's names, which say of which bundle they are."""


def live_actors() -> list[Actor]:
    """All actors that Ray shows as alive, the Java ones included.

    What was a prestarted process is listed as what it has become.
    """
    states = list_actors(
        address=ray.get_runtime_context().gcs_address,  # another Ray may run on this machine
        filters=[("state", "=", "ALIVE")],
        detail=True,
        limit=10_000,
    )
    roles = {
        namespace: _roles(RayDirectory(namespace))
        for namespace in {state.ray_namespace for state in states if _is_prestarted(state)}
        if namespace is not None
    }

    def role(state: ActorState) -> str:
        return roles.get(state.ray_namespace or "", {}).get(state.name or "", "")

    return [
        Actor(
            name=role(state) or state.name or "",
            kind=role(state).partition("-")[0] or state.class_name,
            namespace=state.ray_namespace or "",
            pid=state.pid or 0,
            actor_id=state.actor_id,
            node_id=state.node_id or "",
            worker_group=state.placement_group_id or None,
            bundle_index=_bundle_index(state.required_resources or {}),
            resources=state.required_resources or {},
        )
        for state in states
    ]


def _is_prestarted(state: ActorState) -> bool:
    return bool(state.class_name == "Prestarted")


def _roles(directory: RayDirectory) -> dict[str, str]:
    """Name of the process that each prestarted actor is now, by the name of the actor."""
    records = ((name, directory.get(name)) for name in directory.names(""))
    return {
        record.actor_name: name
        for name, record in records
        if record is not None and name not in (record.actor_name, record.name_before)
    }


def _bundle_index(resources: dict[str, float]) -> int | None:
    for name in resources:
        match = re.fullmatch(r"\w+_group_(\d+)_[0-9a-f]+", name)
        if match is not None:
            return int(match[1])
    return None


def actor(kind: str, job_id: JobID | None = None) -> Actor:
    """The cluster's one live actor of a class (of a job, where the class has one per job)."""
    found = [
        a
        for a in live_actors()
        if (a.kind, a.namespace) == (kind, NAMESPACE) and (job_id is None or job_id.hex() in a.name)
    ]
    assert len(found) == 1, f"{kind} of {job_id}: {found}"
    return found[0]


def spark_executors() -> list[Actor]:
    """Of all jobs."""
    return [a for a in live_actors() if a.name.startswith("raydp-executor-")]


def worker_groups(job_id: JobID) -> dict[str, list[dict[str, float]]]:
    """The placement groups of a job that are not removed: id -> bundles."""
    return {
        group_id: list(entry["bundles"].values())
        for group_id, entry in placement_group_table().items()
        if job_id.hex() in entry["name"] and entry["state"] != "REMOVED"
    }


def traces(job_id: JobID) -> list[str]:
    """Everything of a job that is still there."""
    found = [f"actor {a.name} ({a.kind})" for a in live_actors() if job_id.hex() in a.name]
    found += [f"placement group {group}" for group in worker_groups(job_id)]
    found += [f"process {p.pid} {p.name()}" for p in leftover_processes(job_id)]
    return found


def assert_leaves_no_traces(job_id: JobID) -> None:
    """Within LEAVE_TIME nothing of the job is left."""
    wait_until(lambda: not traces(job_id), LEAVE_TIME, f"{traces(job_id)} to be gone")


def assert_leaves_nothing(job_id: JobID, resources_before: dict[str, float]) -> None:
    """Within LEAVE_TIME nothing of the job is left and its resources are back."""
    assert_leaves_no_traces(job_id)
    wait_until(
        lambda: available_resources() == resources_before,
        LEAVE_TIME,
        f"{resources_before} to be available again",
    )


def available_resources() -> dict[str, float]:
    """CPU and memory that nobody has reserved."""
    available = ray.available_resources()
    return {name: round(available.get(name, 0.0), 3) for name in ("CPU", "memory")}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
