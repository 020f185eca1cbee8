"""Simulated nodes with worker groups, and the ResourceManager's driver that creates the groups.

A *worker group* stands for a Ray placement group: a list of *bundles* (amounts of resources), each
of which is placed on a node and holds one TaskExecutor. The classes need no event loop: a process
that waits for a change registers a callback.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.task_executor import NodeAddress
from flinkray.actors.resource_manager.driver import (
    TASK_EXECUTOR_FACTORY,
    ResourceManagerDriver,
    WorkerGroupHandle,
    WorkerGroupLostError,
    WorkerGroupRequest,
    WorkerGroupStartError,
    task_executor_spec,
)
from flinkray.core.errors import RpcConnectionError
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RpcService
from flinkray.scheduler.resources.cluster_resources import ClusterResources


@dataclass(eq=False)
class WorkerNode:
    """A simulated node, with its resources and the part of them that worker groups use."""

    node_id: str
    total: ResourceProfile
    used: ResourceProfile = field(default_factory=lambda: ResourceProfile(0.0))
    is_up: bool = True

    @property
    def available(self) -> ResourceProfile:
        return self.total - self.used


@dataclass(eq=False)
class GroupRecord:
    """A worker group that exists, with the nodes on which its bundles are placed."""

    group: WorkerGroupHandle
    nodes: list[WorkerNode | None]
    """The node of each bundle; None: the bundle is not placed."""
    listeners: list[Callable[[], None]] = field(default_factory=list)
    """Called once, when the group is placed (again) or removed."""
    starts: dict[ResourceID, int] = field(default_factory=dict)
    """The TaskExecutors that were started in the group, with their bundles."""

    @property
    def is_placed(self) -> bool:
        return None not in self.nodes

    def wake(self) -> None:
        """Call the listeners once, because the group was placed or removed."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()


class WorkerNodes(ABC):
    """Simulated nodes and the worker groups on them, which outlive any ResourceManager, as in Ray.

    A group is placed as a whole as soon as there is room, the oldest group first. Bundles whose
    node is lost are placed again. ``starts`` lists the started TaskExecutors in order.
    """

    def __init__(self, *nodes: ResourceProfile) -> None:
        self.nodes = [WorkerNode(f"node-{i}", total) for i, total in enumerate(nodes)]
        self.groups: dict[WorkerGroupId, GroupRecord] = {}
        self.created_groups: list[WorkerGroupHandle] = []
        self.starts: list[ResourceID] = []
        self.factory = TASK_EXECUTOR_FACTORY
        """The path of the factory of the TaskExecutors' processes."""
        self.lists = 0
        """How often a ResourceManager has listed the TaskExecutors, for tests."""
        self._next_start = 0
        self.refusal: str | None = None
        """Why the creation of a group is refused; None: groups can be created."""
        self._waiting: dict[WorkerGroupId, GroupRecord] = {}
        """The groups that are not placed, oldest first."""

    @abstractmethod
    def _is_alive(self, process_name: str) -> bool:
        """Return whether a process exists, even if it is still starting."""

    @abstractmethod
    def _end_processes(self, record: GroupRecord) -> None:
        """End all processes that were placed in a group, for good."""

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, total: ResourceProfile) -> WorkerNode:
        """Add a node; groups that waited for room are placed."""
        node = WorkerNode(self._new_node_id(), total)
        self.nodes.append(node)
        self.place()
        return node

    def _new_node_id(self) -> str:
        return f"node-{len(self.nodes)}"

    def node_lost(self, node_id: str) -> None:
        """Take a node away. Its bundles are placed on other nodes when there is room."""
        for node in self.nodes:
            if node.node_id == node_id and node.is_up:
                node.is_up, node.used = False, ResourceProfile(0.0)
                for group_id, record in self.groups.items():
                    if node in record.nodes:
                        record.nodes = [None if n is node else n for n in record.nodes]
                        self._waiting[group_id] = record
                self.place()

    def node_back(self, node_id: str) -> None:
        """Let a lost node be up again, with nothing on it. Waiting groups may be placed on it."""
        for node in self.nodes:
            if node.node_id == node_id and not node.is_up:
                node.is_up = True
                self.place()

    @property
    def resources(self) -> ClusterResources:
        """The total and available resources of the nodes that are up."""
        up = [node for node in self.nodes if node.is_up]
        zero = ResourceProfile(0.0)
        return ClusterResources(
            total=sum((node.total for node in up), start=zero),
            available=sum((node.available for node in up), start=zero),
            nodes=tuple(node.total for node in up),
        )

    # --- groups -----------------------------------------------------------------------------------

    def create(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        """Create a worker group, and place it if there is room; otherwise it waits for room.

        Raises WorkerGroupStartError if the test has set ``refusal``.
        """
        if self.refusal is not None:
            raise WorkerGroupStartError(self.refusal)
        number = len(self.created_groups)
        owner = "shared" if request.owner is None else request.owner.job_id.hex()
        group = WorkerGroupHandle(
            WorkerGroupId(f"{number:08x}"),
            f"local-{owner}-{number}",
            request.owner,
            request.bundles,
        )
        self.created_groups.append(group)
        record = GroupRecord(group, [None] * len(group.bundles))
        self.groups[group.group_id] = self._waiting[group.group_id] = record
        self.place()
        return group

    def place(self) -> None:
        """Place the waiting groups for which there is room now."""
        for group_id, record in tuple(self._waiting.items()):
            if self._reserve(record):
                del self._waiting[group_id]
                record.wake()

    def remove(self, group_id: WorkerGroupId) -> None:
        """Remove a group; the processes in it die. No error if there is no such group."""
        record = self.groups.pop(group_id, None)
        if record is None:
            return
        self._waiting.pop(group_id, None)
        self._end_processes(record)
        for node, bundle in zip(record.nodes, record.group.bundles, strict=True):
            if node is not None:
                node.used = node.used - bundle
        record.wake()
        self.place()

    def next_start(self) -> int:
        """Return a new number for the name of a TaskExecutor that is about to be started."""
        self._next_start += 1
        return self._next_start - 1

    def started(self, group_id: WorkerGroupId, bundle_index: int, resource_id: ResourceID) -> None:
        """Record that a TaskExecutor is being started in a bundle."""
        self.starts.append(resource_id)
        record = self.groups.get(group_id)
        if record is not None:
            record.starts[resource_id] = bundle_index

    def occupied(self, group_id: WorkerGroupId) -> dict[int, ResourceID]:
        """Return bundle index -> id of the living TaskExecutor in the bundle, for bundles that have
        one."""
        record = self.groups.get(group_id)
        starts = {} if record is None else record.starts
        return {index: name for name, index in starts.items() if self._is_alive(name)}

    def node_of(self, group_id: WorkerGroupId, bundle_index: int) -> WorkerNode | None:
        """Return the node of a bundle; None: not placed now. Raises KeyError: no such group."""
        return self.groups[group_id].nodes[max(0, bundle_index)]

    def _reserve(self, record: GroupRecord) -> bool:
        """Reserve room on nodes for all bundles that have no node, and return True. If there is not
        room for all, reserve none and return False."""
        chosen: list[tuple[int, WorkerNode]] = []
        bundles = record.group.bundles
        for index, bundle in enumerate(bundles):
            if record.nodes[index] is not None:
                continue
            up = (n for n in self.nodes if n.is_up and bundle.fits_into(n.available))
            node = next(up, None)
            if node is None:
                for taken, other in chosen:
                    other.used = other.used - bundles[taken]
                return False
            node.used = node.used + bundle
            chosen.append((index, node))
        for index, node in chosen:
            record.nodes[index] = node
        return True


class WorkerNodesDriver(ResourceManagerDriver):
    """The ResourceManager's driver that starts and releases workers on WorkerNodes. The
    ResourceManager runs in the process of *rpc_service*. A subclass may let each request take time,
    before and after it takes effect."""

    def __init__(
        self,
        rpc_service: RpcService,
        cluster: ClusterArguments,
        workers: WorkerNodes,
    ) -> None:
        self._rpc_service = rpc_service
        self._cluster = cluster
        self._workers = workers

    async def _take_time(self) -> None:
        """Return at once. A subclass overrides this to delay each request, before and after its
        effect."""

    def _waker(self, changed: asyncio.Future[None]) -> Callable[[], None]:
        """Return a function that completes *changed*, a future of this process; any process may
        call it."""

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        return wake

    async def create_worker_group(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        await self._take_time()
        group = self._workers.create(request)
        await self._take_time()
        return group

    async def wait_until_placed(self, group: WorkerGroupId) -> None:
        while True:
            record = self._workers.groups.get(group)
            if record is None:
                raise WorkerGroupLostError(f"group {group} was removed")
            if record.is_placed:
                break
            changed: asyncio.Future[None] = self._rpc_service.loop.create_future()
            record.listeners.append(self._waker(changed))
            await changed
        await self._take_time()

    async def describe_placement(self, group: WorkerGroupId) -> str:
        return f"group {group}: no room"

    async def release_worker_group(self, group: WorkerGroupId) -> None:
        await self._take_time()
        self._workers.remove(group)
        await self._take_time()

    def new_task_executor_id(self, group: WorkerGroupHandle, bundle_index: int) -> ResourceID:
        number = self._workers.next_start()
        return ResourceID(f"TaskExecutor-{group.group_id}-{bundle_index}-{number}")

    async def start_task_executor(
        self,
        resource_id: ResourceID,
        group: WorkerGroupHandle,
        bundle_index: int,
        number_of_slots: int,
    ) -> None:
        workers = self._workers
        await self._take_time()
        record = workers.groups.get(group.group_id)
        node = None if record is None else record.nodes[bundle_index]
        if node is None:
            raise RpcConnectionError(f"{resource_id} has no place: its bundle is gone")
        workers.started(group.group_id, bundle_index, resource_id)
        await self._rpc_service.spawn(
            task_executor_spec(
                resource_id,
                group,
                bundle_index,
                number_of_slots,
                self._cluster,
                factory=workers.factory,
                node=NodeAddress(node.node_id, "127.0.0.1"),
            )
        )

    async def stop_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.stop(resource_id)

    async def kill_task_executor(self, resource_id: ResourceID) -> None:
        await self._rpc_service.kill(resource_id)

    async def occupied_bundles(
        self, groups: Iterable[WorkerGroupId]
    ) -> dict[WorkerGroupId, dict[int, ResourceID]]:
        self._workers.lists += 1
        occupied = {group: self._workers.occupied(group) for group in groups}
        await self._take_time()
        return occupied

    async def cluster_resources(self) -> ClusterResources:
        return self._workers.resources

    async def dashboard_url(self) -> str | None:
        return None

    async def recover(self) -> tuple[WorkerGroupHandle, ...]:
        groups = tuple(record.group for record in self._workers.groups.values())
        await self._take_time()
        return groups
