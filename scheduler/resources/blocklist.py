"""Keeps the blocked nodes, on which nothing is started and whose slots are not given to jobs."""

from __future__ import annotations

from flinkray.core.message import message


@message
class BlockedNode:
    """A node that the ResourceManager is asked to block for a while, so that nothing is started on
    it and its slots are not given to jobs."""

    node_id: str
    cause: str
    duration: float
    """Seconds from the moment when the ResourceManager receives the message."""


class Blocklist:
    """Remembers which nodes are blocked, and until when.  ``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[BlockedNode, float]] = {}

    def block(self, node: BlockedNode, now: float) -> float:
        """Block the node, and return the time until which it is blocked. If the node was blocked
        before, the later of both times counts."""
        until = now + node.duration
        known = self._nodes.get(node.node_id)
        if known is not None and known[1] >= until:
            return known[1]
        self._nodes[node.node_id] = (node, until)
        return until

    def unblock(self, node_id: str) -> bool:
        """Unblock the node.  Returns whether it was blocked."""
        return self._nodes.pop(node_id, None) is not None

    def is_over(self, node_id: str, now: float) -> bool:
        """Unblock the node if its time has passed.  Returns whether this call unblocked it."""
        known = self._nodes.get(node_id)
        if known is None or known[1] > now:
            return False
        del self._nodes[node_id]
        return True

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def all(self) -> tuple[BlockedNode, ...]:
        """Return the blocked nodes, in the order in which they were blocked."""
        return tuple(node for node, _ in self._nodes.values())
