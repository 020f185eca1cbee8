"""Looks again and again, beside a test, whether the resources of a cluster add up."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pprint import pformat
from types import TracebackType
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group_table

from flinkray.client import ClusterClient
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.core.resources import ResourceProfile
from tests.system.observer import Actor, live_actors
from tests.system.resource_samples import (
    Claim,
    Group,
    Manager,
    RayState,
    Sample,
    Worker,
    resource_manager,
    task_executor,
    violations,
)

PAUSE = 0.2
"""Seconds between two samples: the jobs that are looked at need the processor, too."""


class ImpossibleSampleError(AssertionError):
    """What the sample contradicts, and the whole sample."""


class Sampler:
    """Takes samples in a thread of its own until it is left, or one of them cannot be."""

    def __init__(self, look: Callable[[], Sample]) -> None:
        self._look = look
        self._leaving = threading.Event()
        self._pool = ThreadPoolExecutor(1, "sampler")
        self._work: Future[None] | None = None
        self.count = 0
        """How many samples were taken."""
        self._latest: tuple[Sample, list[str]] | None = None

    def __enter__(self) -> Sampler:
        self._work = self._pool.submit(self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leaving.set()
        self._pool.shutdown()
        if not isinstance(error, ImpossibleSampleError):
            self.latest()  # also where the test has failed: this may be why

    def latest(self) -> Sample | None:
        """Raises ImpossibleSampleError once a sample was impossible, and what the look raised."""
        assert self._work is not None
        if self._work.done():
            self._work.result()
        if self._latest is None:
            return None
        sample, found = self._latest
        if found:
            raise ImpossibleSampleError(
                "\n".join((*found, f"in sample {self.count}:", pformat(sample, width=160)))
            )
        return sample

    def _run(self) -> None:
        is_over = False
        while not is_over:
            sample = self._look()
            found = violations(sample)
            self._latest = (sample, found)
            self.count += 1
            is_over = bool(found) or self._leaving.wait(PAUSE)


class Look:
    """Asks Ray, the ResourceManager and the TaskExecutors of a cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._namespace = cluster_namespace(client.cluster_id)
        self._handles: dict[str, Any] = {}

    def __call__(self) -> Sample:
        ray_before = ray_state()
        actors = live_actors()
        names = [
            a.name for a in actors if (a.kind, a.namespace) == ("TaskExecutor", self._namespace)
        ]
        return Sample(
            ray_before=ray_before,
            claims=tuple(claim_of(actor) for actor in actors),
            manager_before=self._manager(),
            executors=tuple(filter(None, map(self._executor, names))),
            overview=self._client.cluster_overview(),
            manager_after=self._manager(),
            ray_after=ray_state(),
        )

    def _manager(self) -> Manager:
        manager: Manager = self._ask("ResourceManager", resource_manager)
        return manager

    def _executor(self, name: str) -> Worker | None:
        try:
            executor: Worker | None = self._ask(name, task_executor)
        except (RayActorError, ValueError):  # it ended after it was listed
            return None
        return executor

    def _ask(self, name: str, question: Callable[[Any], object]) -> Any:
        if name not in self._handles:
            self._handles[name] = ray.get_actor(name, self._namespace)
        return ray.get(self._handles[name].__ray_call__.remote(question))


def ray_state() -> RayState:
    nodes = {
        node["NodeID"]: ResourceProfile.from_ray_resources(node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    }
    available = available_resources_per_node()
    return RayState(
        nodes=nodes,
        available={n: ResourceProfile.from_ray_resources(available[n]) for n in available},
        groups={group_id: _group(entry) for group_id, entry in placement_group_table().items()},
    )


def _group(entry: dict[str, Any]) -> Group:
    bundles = sorted(entry["bundles"].items())
    return Group(
        name=entry["name"],
        state=entry["state"],
        bundles=tuple(ResourceProfile.from_ray_resources(bundle) for _, bundle in bundles),
        nodes=tuple(entry["bundles_to_node_id"].get(index) or None for index, _ in bundles),
    )


def claim_of(actor: Actor) -> Claim:
    if actor.worker_group is None:
        profile = ResourceProfile.from_ray_resources(actor.resources)
        return Claim(actor.name, actor.node_id, profile)
    claimed = {}
    for name, amount in actor.resources.items():
        match = re.fullmatch(r"(\w+)_group_\d+_[0-9a-f]+", name)
        if match is not None and match[1] != "bundle":
            claimed[match[1]] = amount
    return Claim(
        actor.name,
        actor.node_id,
        ResourceProfile.from_ray_resources(claimed),
        actor.worker_group,
        actor.bundle_index,
    )
