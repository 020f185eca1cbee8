"""Simulated nodes and their worker groups, which replace Ray's placement groups.

The classes need no event loop: a waiting process registers a callback, which wakes that process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from flinkray.actors.resource_manager.driver import (
    TASK_EXECUTOR_FACTORY,
    WorkerGroupHandle,
    WorkerGroupRequest,
    WorkerGroupStartError,
)
from flinkray.core.ids import ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.shortages import ClusterResources


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
    """Record of a worker group that exists, placed or not."""

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
    """Nodes and the worker groups on them; they outlive any ResourceManager, as in Ray.

    A group is placed as a whole as soon as there is room, the oldest group first; bundles that lost
    their node are placed anew. ``starts`` lists the started TaskExecutors in order.
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
        """Create a group, and place it if there is room.
        Raises WorkerGroupStartError if refused.
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
        """Note that a TaskExecutor is being started in a bundle."""
        self.starts.append(resource_id)
        record = self.groups.get(group_id)
        if record is not None:
            record.starts[resource_id] = bundle_index

    def occupied(self, group_id: WorkerGroupId) -> dict[int, ResourceID]:
        """Return the bundles that have a living TaskExecutor, with its id."""
        record = self.groups.get(group_id)
        starts = {} if record is None else record.starts
        return {index: name for name, index in starts.items() if self._is_alive(name)}

    def node_of(self, group_id: WorkerGroupId, bundle_index: int) -> WorkerNode | None:
        """Return the node of a bundle; None: not placed now. Raises KeyError: no such group."""
        return self.groups[group_id].nodes[max(0, bundle_index)]

    def _reserve(self, record: GroupRecord) -> bool:
        """Reserve room for all bundles without a node, or for none; return whether it worked."""
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
