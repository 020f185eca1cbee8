"""Translates placements into Ray's options."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flinkray.core.ids import WorkerGroupId
from flinkray.rpc.spec import EndpointSpec, Placement

MAX_CONCURRENCY = 100_000
"""The concurrency of actors: every watcher of a process keeps one call to its actor open."""


_NODE_ID = "ray.io/node-id"
"""Ray's own label of each node: its id."""


def actor_options(
    spec: EndpointSpec, namespace: str, avoided_node: str | None = None
) -> dict[str, Any]:
    """Return the ``options`` of the actor that hosts the process of *spec*.

    The process is not started on *avoided_node* if there are other nodes, unless its placement says
    where. Environment variables are not part of the options: with a runtime_env, Ray starts a fresh
    worker through its agent, instead of taking one from its pool.
    """
    placement = spec.placement
    options: dict[str, Any] = {
        "name": spec.name,
        "namespace": namespace,
        "num_cpus": placement.num_cpus,
        "max_restarts": spec.max_restarts,
        "max_task_retries": 0,
        "max_concurrency": MAX_CONCURRENCY,
        **_place(placement, avoided_node),
    }
    if spec.detached:
        options["lifetime"] = "detached"
    if placement.memory:
        options["memory"] = placement.memory
    if placement.resources:
        options["resources"] = placement.resources
    return options


def placement_group_of(worker_group: WorkerGroupId) -> PlacementGroup:
    """Return Ray's handle of a worker group; another process may have made the group."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(worker_group.value)))


def _place(placement: Placement, avoided_node: str | None) -> dict[str, Any]:
    if placement.worker_group is not None:
        strategy = PlacementGroupSchedulingStrategy(
            placement_group_of(placement.worker_group),
            placement_group_bundle_index=placement.bundle_index,
            placement_group_capture_child_tasks=False,
        )
        return {"scheduling_strategy": strategy}
    if placement.node_id is not None:
        return {"scheduling_strategy": "DEFAULT", **_preferring(placement.node_id)}
    return {"scheduling_strategy": "DEFAULT", **avoiding(avoided_node)}


def _preferring(node_id: str) -> dict[str, Any]:
    # Not a soft NodeAffinitySchedulingStrategy: actors that take no resources go anywhere with it
    return _selecting(node_id, "!" + node_id)


def avoiding(node_id: str | None) -> dict[str, Any]:
    """Return actor options that avoid *node_id* if there are other nodes; None: avoid no node."""
    return {} if node_id is None else _selecting("!" + node_id, node_id)


def _selecting(first: str, second: str) -> dict[str, Any]:
    return {
        "label_selector": {_NODE_ID: first},
        "fallback_strategy": [{"label_selector": {_NODE_ID: second}}],
    }
