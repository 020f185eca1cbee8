"""Workers on a LocalNetwork: what Ray is to a real cluster, for tests of the control plane."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

from flinkray.actors.messages import ClusterArguments
from flinkray.actors.resource_manager import ResourceManager, lead_resource_manager
from flinkray.actors.resource_manager_driver import (
    ResourceManagerDriver,
    WorkerGroup,
    WorkerGroupLostError,
    WorkerGroupRequest,
    WorkerGroupStartError,
)
from flinkray.actors.task_executor_arguments import NodeAddress, TaskExecutorArguments
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService
from flinkray.scheduler.shortages import ClusterResources

LOCAL_TASK_EXECUTOR = "flinkray.actors.task_executor:create_task_executor"


@dataclass(eq=False)
class LocalNode:
    """A pretended node."""

    node_id: str
    total: ResourceProfile
    used: ResourceProfile = field(default_factory=lambda: ResourceProfile(0.0))

    @property
    def available(self) -> ResourceProfile:
        return self.total - self.used


@dataclass(eq=False)
class _Group:
    group: WorkerGroup
    nodes: tuple[LocalNode, ...] | None = None
    """Of each bundle; None: not placed."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    removed: asyncio.Event = field(default_factory=asyncio.Event)


class LocalWorkers:
    """Nodes and the worker groups on them; outlives any ResourceManager, as Ray does.

    A group is placed as a whole as soon as there is room, the oldest first.  ``starts`` lists the
    TaskExecutors that were started, in their order.
    """

    _of_network: ClassVar[WeakKeyDictionary[LocalNetwork, LocalWorkers]] = WeakKeyDictionary()

    def __init__(self, network: LocalNetwork, *nodes: ResourceProfile) -> None:
        self.network = network
        self.nodes = [LocalNode(f"node-{i}", total) for i, total in enumerate(nodes)]
        self.groups: dict[WorkerGroupId, _Group] = {}
        self.created_groups: list[WorkerGroup] = []
        self.starts: list[ResourceID] = []
        self.refusal: str | None = None
        """Set: no group can be created, for this reason."""
        self.start_delay = 0.0
        """Seconds that a TaskExecutor takes to start."""
        self.factory = LOCAL_TASK_EXECUTOR
        """Of the TaskExecutors' processes."""
        self._of_network[network] = self

    @classmethod
    def of(cls, network: LocalNetwork) -> LocalWorkers:
        """The workers of a network.  Raises KeyError when there are none."""
        return cls._of_network[network]

    def add_node(self, total: ResourceProfile) -> None:
        """A node joins; groups that waited for it are placed."""
        self.nodes.append(LocalNode(f"node-{len(self.nodes)}", total))
        self.place()

    def create(self, request: WorkerGroupRequest) -> WorkerGroup:
        if self.refusal is not None:
            raise WorkerGroupStartError(self.refusal)
        number = len(self.created_groups)
        owner = "shared" if request.job_id is None else request.job_id.hex()
        group = WorkerGroup(
            WorkerGroupId(f"{number:08x}"),
            f"local-{owner}-{number}",
            request.job_id,
            request.bundles,
        )
        self.created_groups.append(group)
        self.groups[group.group_id] = _Group(group)
        self.place()
        return group

    def place(self) -> None:
        """Place the groups for which there is room."""
        for record in self.groups.values():
            if record.nodes is None:
                record.nodes = self._reserve(record.group.bundles)
                if record.nodes is not None:
                    record.placed.set()

    def remove(self, group_id: WorkerGroupId) -> None:
        """Remove a group, and the processes in it die."""
        record = self.groups.pop(group_id, None)
        if record is None:
            return
        for name in self.occupied(group_id).values():
            self.network.kill(name)
        if record.nodes is not None:
            for node, bundle in zip(record.nodes, record.group.bundles, strict=True):
                node.used = node.used - bundle
        record.removed.set()
        record.placed.set()
        self.place()

    async def removed(self, group_id: WorkerGroupId) -> None:
        """Return when a group that exists is removed."""
        await self.groups[group_id].removed.wait()

    def occupied(self, group_id: WorkerGroupId) -> dict[int, ResourceID]:
        prefix = f"TaskExecutor-{group_id}-"
        names = [name for name in self.starts if name.startswith(prefix)]
        return {int(name.split("-")[2]): name for name in names if name in self.network.services}

    def node_of(self, group_id: WorkerGroupId, bundle_index: int) -> LocalNode:
        nodes = self.groups[group_id].nodes
        assert nodes is not None, f"{group_id} is not placed"
        return nodes[bundle_index]

    def _reserve(self, bundles: tuple[ResourceProfile, ...]) -> tuple[LocalNode, ...] | None:
        chosen: list[LocalNode] = []
        for bundle in bundles:
            node = next((n for n in self.nodes if bundle.fits_into(n.available)), None)
            if node is None:
                for taken, used in zip(chosen, bundles, strict=False):
                    taken.used = taken.used - used
                return None
            node.used = node.used + bundle
            chosen.append(node)
        return tuple(chosen)


class LocalResourceManagerDriver(ResourceManagerDriver):
    """Drives LocalWorkers from the process of *rpc_service*."""

    def __init__(self, rpc_service: LocalRpcService, cluster: ClusterArguments) -> None:
        self._rpc_service = rpc_service
        self._cluster = cluster
        self._workers = LocalWorkers.of(rpc_service.network)

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroup:
        return self._workers.create(request)

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        record = self._workers.groups.get(group)
        if record is not None:
            await record.placed.wait()
        if record is None or record.removed.is_set():
            raise WorkerGroupLostError(f"group {group} was removed")

    async def describe_placement(self, group: WorkerGroupId) -> str:
        return f"group {group}: no room"

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        self._workers.remove(group)

    async def start_task_executor(
        self, group: WorkerGroup, bundle_index: int, number_of_slots: int
    ) -> ResourceID:
        workers = self._workers
        resource_id = ResourceID(
            f"TaskExecutor-{group.group_id}-{bundle_index}-{len(workers.starts)}"
        )
        node = workers.node_of(group.group_id, bundle_index)
        await asyncio.sleep(workers.start_delay)
        workers.starts.append(resource_id)
        await self._rpc_service.spawn(
            EndpointSpec(
                kind="TaskExecutor",
                name=resource_id,
                factory=workers.factory,
                arguments=TaskExecutorArguments(
                    resource_id=resource_id,
                    worker_group=group.group_id,
                    bundle_index=bundle_index,
                    total_profile=group.bundles[bundle_index],
                    number_of_slots=number_of_slots,
                    cluster=self._cluster,
                    is_dedicated=group.job_id is not None,
                    node=NodeAddress(node.node_id, "127.0.0.1"),
                ),
                detached=True,
            )
        )
        return resource_id

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.stop(resource_id)

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.kill(resource_id)

    async def occupied_bundles(self, group: WorkerGroupId) -> dict[int, ResourceID]:
        return self._workers.occupied(group)

    async def cluster_resources(self) -> ClusterResources:
        zero = ResourceProfile(0.0)
        nodes = self._workers.nodes
        return ClusterResources(
            total=sum((node.total for node in nodes), start=zero),
            available=sum((node.available for node in nodes), start=zero),
            nodes=tuple(node.total for node in nodes),
        )

    def dashboard_url(self) -> str | None:
        return None

    async def recover(self) -> tuple[WorkerGroup, ...]:
        return tuple(record.group for record in self._workers.groups.values())


async def create_local_resource_manager(
    rpc_service: LocalRpcService, arguments: ClusterArguments
) -> ResourceManager:
    """Factory of a ResourceManager on the LocalWorkers of its network."""
    driver = LocalResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)
