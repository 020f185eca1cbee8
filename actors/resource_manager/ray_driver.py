"""The driver for Ray: a worker group is a placement group, a TaskExecutor is an actor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import ray
from ray._private.services import get_webui_url_from_internal_kv
from ray._private.state import available_resources_per_node
from ray._private.state import state as global_state
from ray._raylet import PlacementGroupID
from ray.exceptions import RayError
from ray.util import list_named_actors, placement_group_table
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.resource_manager.driver import (
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupLostError,
    WorkerGroupRequest,
    WorkerGroupStartError,
    task_executor_spec,
)
from flinkray.actors.resource_manager.shared_poll import SharedPoll
from flinkray.core.ids import JobID, ResourceID, WorkerGroupId, random_bytes
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RayRpcService
from flinkray.rpc.time_limit import within
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.scheduler.shared.slots import WorkerGroupOwner

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHARED = "shared"
_TASK_EXECUTOR = r"TaskExecutor-\d+-(?P<bundle>\d+)-(?P<mark>[0-9a-f]{8})[0-9a-f]{4}"
"""Pattern of TaskExecutor process names. Names of task processes end with such a name."""
_FIRST_POLLS = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
_LATER_POLL = 0.25
"""Seconds between two polls of a group after the first, faster polls.
Ray places a small group within 6 ms, and itself tries again about once a second. Groups that wait
longer than the first polls are polled together.
"""
_RELEASE_POLL = 0.02
_RELEASE_TIMEOUT = 30.0
"""Seconds after which Ray is no longer polled before and after a group is removed. Usually removal
takes 0.1 s.
"""
_NOT_PLACED = ("NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES")
"""Ray's words for groups that it could not place. It tries again later."""
_PATIENCE = 2.0
"""Longest wait in seconds for an answer of Ray's head that is only shown to people."""
_NOTHING_KNOWN = ClusterResources(ResourceProfile(0.0), ResourceProfile(0.0), ())


class RayResourceManagerDriver(ResourceManagerDriver):
    """Driver for Ray. Must run in a process that is connected to Ray, in the cluster's namespace.

    Placement groups are detached. Their bundles and their name ``flinkray-<cluster
    id>-<owner>-<n>`` contain everything that :meth:`recover` needs. The owner is ``shared``, or a
    job's id and the name of its group, quoted as in a URL. The state of each group is polled by its
    id, because Ray's own wait holds a thread, and Ray's list also contains removed groups.
    """

    def __init__(
        self,
        rpc_service: RayRpcService,
        cluster: ClusterArguments,
    ) -> None:
        self._rpc_service = rpc_service
        self._head = rpc_service.head
        self._last_resources = _NOTHING_KNOWN
        self._cluster = cluster
        self._namespace = f"flinkray-{cluster.cluster_id}"
        self._prefix = f"{self._namespace}-"
        self._next_number = 0
        run, now = self._head.ask_patiently, rpc_service.clock.monotonic
        self._placements: SharedPoll[str, str] = SharedPoll(
            lambda groups: run(_ended_placements, groups), shortest_pause=_LATER_POLL, now=now
        )
        self._attempts: SharedPoll[str, bool] = SharedPoll(
            lambda groups: run(_not_being_placed, groups), shortest_pause=_RELEASE_POLL, now=now
        )
        self._releases: SharedPoll[str, bool] = SharedPoll(
            lambda groups: run(_released, groups), shortest_pause=_RELEASE_POLL, now=now
        )
        self._emptied: set[str] = set()
        """Marks of released groups. Addresses of their processes may still be recorded."""
        self._forgetting = asyncio.Lock()

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        name = f"{self._prefix}{_quote(request.owner)}-{self._next_number}"
        self._next_number += 1
        bundles = [profile.to_ray_resources() for profile in request.bundles]
        group_id = await self._create(name, bundles)
        return WorkerGroupHandle(WorkerGroupId(group_id), name, request.owner, request.bundles)

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        for delay in _FIRST_POLLS:
            state = (await self._head.ask_patiently(_ended_placements, (group.value,))).get(
                group.value
            )
            if state is not None:
                break
            await asyncio.sleep(delay)
        else:
            state = await self._placements.answer_for(group.value)
        if state == "REMOVED":
            raise WorkerGroupLostError(f"placement group {group} was removed")

    async def _create(self, name: str, bundles: list[dict[str, float]]) -> str:
        try:
            return await self._head.ask(_create, name, bundles)
        except (RayError, ValueError) as error:
            # the head may have failed after it had recorded the group
            found = await self._head.ask_patiently(_id_of, name)
            if found is not None:
                return found
            raise WorkerGroupStartError(f"Ray refused placement group {name}: {error}") from error

    async def describe_placement(self, group: WorkerGroupId) -> str:
        try:
            table = await within(_PATIENCE, self._ask(_table_of, group.value))
        except asyncio.TimeoutError:
            return self._head.outage or "it has not answered yet"
        stats = table.get("stats", {})
        state, detail = table.get("state", "unknown"), stats.get("scheduling_state", "unknown")
        return f"placement group {table.get('name', group)} is {state} ({detail})"

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        """Remove the group and wait until its resources are back, for some time at most.

        The group is not removed while Ray is placing it, unless this takes too long: Ray 2.60 would
        lose the group's resources until its node ends (ray-project/ray#64693 is a similar fault).
        """
        with contextlib.suppress(asyncio.TimeoutError):  # Ray may never say how placement ended
            await within(_RELEASE_TIMEOUT, self._attempts.answer_for(group.value))
        await self._head.ask_patiently(_remove, group.value)
        try:
            await within(_RELEASE_TIMEOUT, self._releases.answer_for(group.value))
        except asyncio.TimeoutError:
            log.error(
                "placement group %s was removed %.0f s ago and Ray still shows its resources; "
                "see: ray list placement-groups",
                group,
                _RELEASE_TIMEOUT,
            )
        await self._forget_processes(group)

    async def _forget_processes(self, group: WorkerGroupId) -> None:
        """Remove the recorded addresses of processes that Ray has ended together with their group.
        If several groups are released at once, the records are read once for all of them."""
        self._emptied.add(_mark(group))
        async with self._forgetting:
            emptied, self._emptied = self._emptied, set()
            if not emptied:
                return
            for name in await self._rpc_service.process_names("Task"):
                match = re.fullmatch(rf"(TaskProcess-\d+-)?{_TASK_EXECUTOR}", name)
                if match is not None and match["mark"] in emptied:
                    await self._rpc_service.kill(name)

    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        number = group.name.rpartition("-")[2]
        suffix = _mark(group.group_id) + random_bytes(2).hex()
        return ResourceID(f"TaskExecutor-{number}-{bundle_index}-{suffix}")

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        await self._rpc_service.spawn(
            task_executor_spec(resource_id, group, bundle_index, number_of_slots, self._cluster)
        )

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.stop(resource_id)

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.kill(resource_id)

    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        actors = await self._head.ask_patiently(_named_actors)
        names = sorted(a["name"] for a in actors if a["namespace"] == self._namespace)
        by_group: dict[str, dict[int, ResourceID]] = {}
        for match in (re.fullmatch(_TASK_EXECUTOR, name) for name in names):
            if match is not None:
                by_group.setdefault(match["mark"], {})[int(match["bundle"])] = ResourceID(match[0])
        return {group: by_group.get(_mark(group), {}) for group in groups}

    async def cluster_resources(self) -> ClusterResources:
        """Return Ray's total and available resources.
        If Ray's head is silent, return the last known resources, marked with the outage.
        """
        try:
            self._last_resources = await within(_PATIENCE, self._ask(_cluster_resources))
        except asyncio.TimeoutError:
            return replace(self._last_resources, outage=self._head.outage)
        return self._last_resources

    async def dashboard_url(self) -> str | None:
        """Return the dashboard URL from Ray's head.
        None if the head does not answer. Processes that Ray has started assume that the port is
        8265.
        """
        try:
            url = await within(_PATIENCE, self._ask(get_webui_url_from_internal_kv))
        except asyncio.TimeoutError:
            return None
        return f"http://{url}" if url else None

    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        table = await self._head.ask_patiently(placement_group_table)
        pattern = re.compile(rf"{re.escape(self._prefix)}({_SHARED}|[0-9a-f]{{32}}-.+)-(\d+)")
        groups: list[tuple[int, WorkerGroupHandle]] = []
        for group_id, entry in table.items():
            match = pattern.fullmatch(entry["name"])
            if match is None or entry["state"] == "REMOVED":
                continue
            number = int(match[2])
            self._next_number = max(self._next_number, number + 1)
            bundles = tuple(
                ResourceProfile.from_ray_resources(bundle)
                for _, bundle in sorted(entry["bundles"].items())
            )
            owner = _unquote(match[1])
            handle = WorkerGroupHandle(WorkerGroupId(group_id), entry["name"], owner, bundles)
            groups.append((number, handle))
        return tuple(group for _, group in sorted(groups, key=itemgetter(0)))

    async def _ask(self, fn: Callable[..., T], *args: object) -> T:
        """Call *fn*, which asks Ray's head, in a thread, and return its result. If the head is
        known to be away, *fn* is not called, because it would block the thread.

        Raises:
            asyncio.TimeoutError: the head is away.
        """
        if self._head.outage is not None:
            raise asyncio.TimeoutError
        return await self._head.ask_patiently(fn, *args)


def _mark(group: WorkerGroupId) -> str:
    """Return the part of TaskExecutor names that identifies the group."""
    return group.value[:8]


def _quote(owner: WorkerGroupOwner | None) -> str:
    if owner is None:
        return _SHARED
    return f"{owner.job_id.hex()}-{quote(owner.name, safe='')}"


def _unquote(text: str) -> WorkerGroupOwner | None:
    if text == _SHARED:
        return None
    job_id, _, name = text.partition("-")
    return WorkerGroupOwner(JobID.from_hex(job_id), unquote(name))


def _placement_group(group_id: str) -> PlacementGroup:
    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))


def _create(name: str, bundles: list[dict[str, float]]) -> str:
    group = placement_group(bundles, strategy="PACK", lifetime="detached", name=name)
    return str(group.id.hex())


def _id_of(name: str) -> str | None:
    for group_id, entry in placement_group_table().items():
        if entry["name"] == name and entry["state"] != "REMOVED":
            return str(group_id)
    return None


def _table_of(group_id: str) -> dict[str, Any]:
    """Return Ray's record of the group. Empty if Ray has forgotten the group."""
    table: dict[str, Any] = placement_group_table(_placement_group(group_id))
    return table


def _named_actors() -> list[dict[str, str]]:
    """Return the named actors that live or are being started, of all namespaces.
    Ray lists either all namespaces or that of the calling process, which may not be the cluster's.
    """
    actors: list[dict[str, str]] = list_named_actors(all_namespaces=True)
    return actors


def _remove(group_id: str) -> None:
    remove_placement_group(_placement_group(group_id))


def _ended_placements(groups: tuple[str, ...]) -> dict[str, str]:
    states = {group: _table_of(group).get("state", "REMOVED") for group in groups}
    return {g: state for g, state in states.items() if state in ("CREATED", "REMOVED")}


def _not_being_placed(groups: tuple[str, ...]) -> dict[str, bool]:
    """Return group -> True for those of *groups* that Ray is not placing at this moment."""
    return {group: True for group in groups if not _is_being_placed(_table_of(group))}


def _is_being_placed(table: dict[str, Any]) -> bool:
    state = table.get("state", "REMOVED")
    if state in ("CREATED", "REMOVED"):
        return False
    return state == "PREPARED" or table["stats"]["scheduling_state"] not in _NOT_PLACED


def _released(groups: tuple[str, ...]) -> dict[str, bool]:
    """Return group -> True for those of *groups* that are removed and that no live node lists any
    more.

    A node removes a group from its list and returns CPU and memory in one step.
    """
    removed = [g for g in groups if _table_of(g).get("state", "REMOVED") == "REMOVED"]
    nodes: dict[str, dict[str, float]] = available_resources_per_node()
    listed = {name.rpartition("_")[2] for node in nodes.values() for name in node}
    return {group: True for group in removed if group not in listed}


def _cluster_resources() -> ClusterResources:
    return ClusterResources(
        total=ResourceProfile.from_ray_resources(ray.cluster_resources()),
        available=ResourceProfile.from_ray_resources(ray.available_resources()),
        nodes=tuple(
            ResourceProfile.from_ray_resources(node["Resources"])
            for node in sorted(
                ray.nodes(),
                key=lambda node: str(node["NodeID"]),
            )
            if node["Alive"]
        ),
        autoscaling=global_state.get_cluster_config() is not None,
    )
