"""Pretended nodes and the worker groups on them: what Ray's placement groups are to a cluster.

Plain books without any event loop: who waits is called back, and brings the call into the process
in which it waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from flinkray.actors.resource_manager.driver import (
    WorkerGroupHandle,
    WorkerGroupRequest,
    WorkerGroupStartError,
)
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.shortages import ClusterResources


@dataclass(eq=False)
class WorkerNode:
    """A pretended node."""

    node_id: str
    total: ResourceProfile
    used: ResourceProfile = field(default_factory=lambda: ResourceProfile(0.0))
    is_up: bool = True

    @property
    def available(self) -> ResourceProfile:
        return self.total - self.used


@dataclass(eq=False)
class GroupRecord:
    """A worker group that exists."""

    group: WorkerGroupHandle
    nodes: list[WorkerNode | None]
    """Of each bundle; None: it is not placed."""
    listeners: list[Callable[[], None]] = field(default_factory=list)
    """Called once, when the group is placed (again) or removed."""
    starts: dict[ResourceID, int] = field(default_factory=dict)
    """TaskExecutors that were started in it, and their bundles."""

    @property
    def is_placed(self) -> bool:
        return None not in self.nodes

    def wake(self) -> None:
        """Something has changed for those who wait."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()


class WorkerNodes(ABC):
    """Nodes and the worker groups on them; outlives any ResourceManager, as Ray does.

    A group is placed as a whole as soon as there is room, the oldest first; bundles that lost their
    node are placed anew.  ``starts`` lists the TaskExecutors that were started, in their order.
    """

    def __init__(self, *nodes: ResourceProfile) -> None:
        self.nodes = [WorkerNode(f"node-{i}", total) for i, total in enumerate(nodes)]
        self.groups: dict[WorkerGroupId, GroupRecord] = {}
        self.created_groups: list[WorkerGroupHandle] = []
        self.starts: list[ResourceID] = []
        self.lists = 0
        """How often it was looked which TaskExecutors there are."""
        self._next_start = 0
        self.refusal: str | None = None
        """Set: no group can be created, for this reason."""
        self._waiting: dict[WorkerGroupId, GroupRecord] = {}
        """Those that are not placed, oldest first."""

    @abstractmethod
    def _is_alive(self, process_name: str) -> bool:
        """Whether a process exists, be it that it starts."""

    @abstractmethod
    def _end_processes(self, record: GroupRecord) -> None:
        """End all that were placed in a group, for good."""

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, total: ResourceProfile) -> WorkerNode:
        """A node joins; groups that waited for it are placed."""
        node = WorkerNode(self._new_node_id(), total)
        self.nodes.append(node)
        self.place()
        return node

    def _new_node_id(self) -> str:
        return f"node-{len(self.nodes)}"

    def node_lost(self, node_id: str) -> None:
        """Its bundles have no node any more, and are placed where there is room."""
        for node in self.nodes:
            if node.node_id == node_id and node.is_up:
                node.is_up, node.used = False, ResourceProfile(0.0)
                for group_id, record in self.groups.items():
                    if node in record.nodes:
                        record.nodes = [None if n is node else n for n in record.nodes]
                        self._waiting[group_id] = record
                self.place()

    def node_back(self, node_id: str) -> None:
        """It is there again, with nothing on it."""
        for node in self.nodes:
            if node.node_id == node_id and not node.is_up:
                node.is_up = True
                self.place()

    @property
    def resources(self) -> ClusterResources:
        """Of the nodes that are up."""
        up = [node for node in self.nodes if node.is_up]
        zero = ResourceProfile(0.0)
        return ClusterResources(
            total=sum((node.total for node in up), start=zero),
            available=sum((node.available for node in up), start=zero),
            nodes=tuple(node.total for node in up),
        )

    # --- groups -----------------------------------------------------------------------------------

    def create(self, request: WorkerGroupRequest) -> WorkerGroupHandle:
        """Raises WorkerGroupStartError when groups are refused."""
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
        """Place the groups for which there is room."""
        for group_id, record in tuple(self._waiting.items()):
            if self._reserve(record):
                del self._waiting[group_id]
                record.wake()

    def remove(self, group_id: WorkerGroupId) -> None:
        """Remove a group, and the processes in it die; fine when there is none."""
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
        """A number for a TaskExecutor that is going to be started."""
        self._next_start += 1
        return self._next_start - 1

    def started(self, group_id: WorkerGroupId, bundle_index: int, resource_id: ResourceID) -> None:
        """A TaskExecutor is being started in a bundle."""
        self.starts.append(resource_id)
        record = self.groups.get(group_id)
        if record is not None:
            record.starts[resource_id] = bundle_index

    def occupied(self, group_id: WorkerGroupId) -> dict[int, ResourceID]:
        """The bundles that hold a TaskExecutor."""
        record = self.groups.get(group_id)
        starts = {} if record is None else record.starts
        return {index: name for name, index in starts.items() if self._is_alive(name)}

    def node_of(self, group_id: WorkerGroupId, bundle_index: int) -> WorkerNode | None:
        """None: the bundle is not placed now.  Raises KeyError when there is no such group."""
        return self.groups[group_id].nodes[max(0, bundle_index)]

    def _reserve(self, record: GroupRecord) -> bool:
        """All bundles that have no node, or none."""
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
