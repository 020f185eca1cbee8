"""Nodes on which nothing is started and from which nothing is given."""

from __future__ import annotations

from flinkray.core.message import message


@message
class BlockedNode:
    """A node that is blocked for a while."""

    node_id: str
    cause: str
    duration: float
    """Seconds from when the ResourceManager hears of it."""


class Blocklist:
    """``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[BlockedNode, float]] = {}

    def block(self, node: BlockedNode, now: float) -> float:
        """Until when it is blocked: the later of what was said before and is said now."""
        until = now + node.duration
        known = self._nodes.get(node.node_id)
        if known is not None and known[1] >= until:
            return known[1]
        self._nodes[node.node_id] = (node, until)
        return until

    def unblock(self, node_id: str) -> bool:
        """Whether it was blocked."""
        return self._nodes.pop(node_id, None) is not None

    def is_over(self, node_id: str, now: float) -> bool:
        """Whether the node was blocked and its time has passed; it is not blocked any more then."""
        known = self._nodes.get(node_id)
        if known is None or known[1] > now:
            return False
        del self._nodes[node_id]
        return True

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def all(self) -> tuple[BlockedNode, ...]:
        """Those that are blocked, longest known first."""
        return tuple(node for node, _ in self._nodes.values())
