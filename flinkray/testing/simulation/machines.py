"""Simulates machines: nodes, and the disks of nodes and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.core.ids import WorkerGroupId
from flinkray.testing.simulation.disk import SimulatedDisk
from flinkray.testing.simulation.errors import SimulationError
from flinkray.testing.simulation.scheduler import Scheduler
from flinkray.testing.simulation.seeds import stream


@dataclass(eq=False)
class Node:
    """A simulated machine."""

    name: str
    is_up: bool = True


class Machines:
    """Places processes on the nodes of one simulation, and crashes and restarts nodes."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        scheduler: Scheduler,
        tell: Callable[..., None],
        new_disk: Callable[[SimulatedDisk], object],
    ) -> None:
        """Make the nodes of a simulation, which are all up. *tell* is called with each line for the
        story (the log of the run); *new_disk* is called with each new disk."""
        self.nodes = [Node(f"node-{number}") for number in range(nodes)]
        self.disks: dict[str, SimulatedDisk] = {}
        """The disks used so far, by the names of nodes and processes."""
        self.bundles: Callable[[WorkerGroupId, int], str | None] | None = None
        """Returns the node of a worker group's bundle; None: the bundle has no node now.

        The function raises KeyError if there is no such group.
        """
        self.listeners: list[Callable[[Node], None]] = []
        """Called when a node has crashed or was restarted."""
        self._seed = seed
        self._scheduler = scheduler
        self._tell = tell
        self._new_disk = new_disk
        self._placed = 0

    def node(self, name: str) -> Node:
        """Return the node with this name. Raises SimulationError: there is no such node."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise SimulationError(f"there is no node {name}")

    def place(self, wanted: str | None = None) -> str:
        """Return the name of the node for a new process: *wanted* if this node is up, otherwise the
        next node in turn that is up."""
        up = [node.name for node in self.nodes if node.is_up] or [self.nodes[0].name]
        if wanted in up:
            return wanted
        self._placed += 1
        return up[self._placed % len(up)]

    def add(self) -> Node:
        """Add a node and return it."""
        node = Node(f"node-{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def restart(self, name: str) -> None:
        """Restart a crashed node, without its processes."""
        node = self.node(name)
        node.is_up = True
        self._changed(node)

    def crash(self, name: str) -> None:
        """Crash a node: its processes die, and its disks lose their power."""
        node = self.node(name)
        node.is_up = False
        for process in tuple(self._scheduler.processes):
            if process.node == name:
                process.die(NODE_CRASHED)
                self._lose_power(process.name)
        self._lose_power(name)
        self._changed(node)

    def disk(self, name: str) -> SimulatedDisk:
        disk = self.disks.get(name)
        if disk is None:
            disk = SimulatedDisk(name, stream(self._seed, "disk", name), self._tell)
            self._new_disk(disk)
            self.disks[name] = disk
        return disk

    def wipe(self, name: str) -> None:
        """Remove all content of the disk *name*, if there is such a disk."""
        if name in self.disks:
            self._tell("the disk %s is lost", name)
            self.disks[name].wipe()

    def _changed(self, node: Node) -> None:
        for listener in self.listeners:
            listener(node)

    def _lose_power(self, disk: str) -> None:
        if disk in self.disks:
            self.disks[disk].lose_power()


NODE_CRASHED = "its node crashed"
"""The reason of death of processes whose node crashed."""
