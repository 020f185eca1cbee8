"""Blocklist beside a model that keeps every word said of a node, while time passes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.scheduler.resources.blocklist import BlockedNode, Blocklist

NODES = ("n0", "n1", "n2")


class BlocklistMachine(RuleBasedStateMachine):
    """The model: what was said since the node was free, with the time until which it holds; and who
    waits for those times, as the SlotManager does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocklist = Blocklist()
        self.now = 0.0
        self.said: list[tuple[BlockedNode, float]] = []
        self.timers: dict[str, float] = {}

    def end_of(self, node_id: str) -> float:
        return max(until for node, until in self.said if node.node_id == node_id)

    def forget(self, node_id: str) -> None:
        self.said = [(node, until) for node, until in self.said if node.node_id != node_id]
        self.timers.pop(node_id, None)

    @rule(
        node_id=st.sampled_from(NODES),
        cause=st.sampled_from(["a bad disk", "a slow network"]),
        seconds=st.sampled_from([1.0, 5.0, 20.0]),
    )
    def block(self, node_id: str, cause: str, seconds: float) -> None:
        node = BlockedNode(node_id, cause, seconds)
        self.said.append((node, self.now + seconds))
        self.timers[node_id] = self.blocklist.block(node, self.now)

    @rule(node_id=st.sampled_from(NODES))
    def unblock(self, node_id: str) -> None:
        was_blocked = any(node.node_id == node_id for node, _ in self.said)
        assert self.blocklist.unblock(node_id) == was_blocked
        self.forget(node_id)

    @rule(node_id=st.sampled_from(NODES))
    def ask(self, node_id: str) -> None:
        """Whoever asks too early changes nothing, nor does who asks of a node that is free."""
        is_over = node_id in self.timers and self.end_of(node_id) <= self.now
        assert self.blocklist.is_over(node_id, self.now) == is_over
        if is_over:
            self.forget(node_id)

    @precondition(lambda self: self.timers)
    @rule()
    def first_timer_rings(self) -> None:
        node_id, self.now = min(self.timers.items(), key=lambda timer: timer[1])
        assert self.blocklist.is_over(node_id, self.now), "its time has passed"
        self.forget(node_id)

    @rule(fraction=st.sampled_from([0.25, 0.5, 1.0]))
    def time_passes(self, fraction: float) -> None:
        """Not beyond the first timer."""
        first = min(self.timers.values(), default=self.now + 10.0)
        self.now += (first - self.now) * fraction

    @invariant()
    def blocked_are_those_of_whom_it_was_said_longest_known_first(self) -> None:
        expected: dict[str, BlockedNode] = {}
        for node, _ in self.said:
            of_node = [one for one in self.said if one[0].node_id == node.node_id]
            expected.setdefault(node.node_id, max(of_node, key=lambda one: one[1])[0])
        assert self.blocklist.all() == tuple(expected.values())
        assert {node_id for node_id in NODES if node_id in self.blocklist} == expected.keys()

    @invariant()
    def each_is_blocked_until_the_latest_time_that_was_said(self) -> None:
        assert self.timers == {node_id: self.end_of(node_id) for node_id in self.timers}

    def teardown(self) -> None:
        """Nothing is blocked for ever."""
        while self.timers:
            self.first_timer_rings()
        assert self.blocklist.all() == ()


TestBlocklist = BlocklistMachine.TestCase
TestBlocklist.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
