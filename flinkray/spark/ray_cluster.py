"""Asks Ray about this process's cluster and about RayDP's executor actors.

Only this module of the package uses Ray's internals; the tested versions are pinned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo

ACTOR_NAME_PREFIX = "raydp-executor-"
"""Prefix of RayDP's names of its executor actors; a number follows."""

_BUNDLE = re.compile(r"(?:CPU|memory|bundle)_group_(\d+)_([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class RayContext:
    """Describes the Ray cluster of this process, as the driver's JVM needs it."""

    address: str
    """Address of the GCS, ``host:port``."""
    node_ip: str
    session_directory: str
    logs_directory: str


def current_ray_context() -> RayContext:
    """Return the context of the Ray cluster that this process is connected to."""
    import ray
    from ray._private import worker

    node: Any = worker._global_node
    return RayContext(
        address=ray.get_runtime_context().gcs_address,
        node_ip=ray.util.get_node_ip_address(),
        session_directory=node.get_session_dir_path(),
        logs_directory=node.get_logs_dir_path(),
    )


def place_of_this_process() -> SparkExecutorInfo:
    """Describe this process as an executor: a stage that is a guest runs in its single slot,
    without executors of its own."""
    import ray

    context = ray.get_runtime_context()
    return SparkExecutorInfo(
        subtask_index=0,
        executor_id="driver",
        actor_id=context.get_actor_id() or "",
        node_id=context.get_node_id(),
        pid=os.getpid(),
        bundle_index=0,
    )


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """Describes a Ray actor. When Ray restarts the actor, name and id stay, but the pid changes."""

    name: str
    actor_id: str
    node_id: str
    pid: int
    placement_group: str
    bundle_index: int
    is_alive: bool
    is_dead: bool
    """Whether the actor is dead for good: Ray will not restart it."""
    death: str = ""
    """Cause of death, for people."""


def ray_executor_actors(namespace: str) -> dict[str, ActorInfo]:
    """Return RayDP's executor actors of a Ray namespace, by name."""
    return {
        name: actor
        for name, actor in ray_actors(namespace).items()
        if name.startswith(ACTOR_NAME_PREFIX)
    }


def ray_actors(namespace: str) -> dict[str, ActorInfo]:
    """Return the named actors of a Ray namespace, by name. Blocks. This process must be connected
    to Ray. The function asks the GCS directly (2 ms): Ray's public state API needs a dashboard,
    which not every cluster has."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]

    actors = {}
    for row in state._connect_and_get_accessor().get_actor_table(None, None):
        data = ActorTableData.FromString(row)
        if data.ray_namespace == namespace and data.name:
            actors[data.name] = ActorInfo(
                name=data.name,
                actor_id=data.actor_id.hex(),
                node_id=data.node_id.hex(),
                pid=data.pid,
                placement_group=data.placement_group_id.hex(),
                bundle_index=bundle_index(data.required_resources),
                is_alive=data.state == ActorTableData.ActorState.ALIVE,
                is_dead=data.state == ActorTableData.ActorState.DEAD,
                death=_death(data.death_cause),
            )
    return actors


def _death(cause: Any) -> str:
    """Return Ray's text about the death of an actor; "" if there is none. *cause*: Ray's
    ``ActorDeathCause``."""
    if cause.HasField("creation_task_failure_context"):
        return str(cause.creation_task_failure_context.formatted_exception_string).strip()
    kind = cause.WhichOneof("context")
    return "" if kind is None else str(getattr(cause, kind).error_message)


def bundle_index(required_resources: Iterable[str]) -> int:
    """Return the bundle in which an actor runs, from the names of its resources
    (``CPU_group_<bundle>_<group>``). -1: no name contains a bundle."""
    for name in required_resources:
        match = _BUNDLE.fullmatch(name)
        if match is not None:
            return int(match[1])
    return -1
