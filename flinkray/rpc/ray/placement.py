"""Placements in Ray's words."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from flinkray.core.ids import WorkerGroupId
from flinkray.rpc.spec import EndpointSpec, Placement

MAX_CONCURRENCY = 100_000
"""Every watcher of a process keeps one call to its actor open."""


def actor_options(spec: EndpointSpec, namespace: str) -> dict[str, Any]:
    """The ``options`` of the actor that hosts the process.

    Environment variables are not among them: a runtime_env makes Ray start a fresh worker through
    its agent, where one from the pool would do.
    """
    placement = spec.placement
    options: dict[str, Any] = {
        "name": spec.name,
        "namespace": namespace,
        "num_cpus": placement.num_cpus,
        "max_restarts": spec.max_restarts,
        "max_task_retries": 0,
        "max_concurrency": MAX_CONCURRENCY,
        "scheduling_strategy": _strategy(placement),
    }
    if spec.detached:
        options["lifetime"] = "detached"
    if placement.memory:
        options["memory"] = placement.memory
    if placement.resources:
        options["resources"] = placement.resources
    return options


def placement_group_of(worker_group: WorkerGroupId) -> PlacementGroup:
    """Ray's handle of a worker group, which may have been made by another process."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(worker_group.value)))


def _strategy(placement: Placement) -> Any:
    if placement.worker_group is not None:
        return PlacementGroupSchedulingStrategy(
            placement_group_of(placement.worker_group),
            placement_group_bundle_index=placement.bundle_index,
            placement_group_capture_child_tasks=False,
        )
    if placement.node_id is not None:
        return NodeAffinitySchedulingStrategy(placement.node_id, soft=True)
    return "DEFAULT"
