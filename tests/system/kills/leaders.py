"""Who has led what, and what leaders have written, as ZooKeeper's own log has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.ha.zookeeper.leader_drivers import CONNECTION_INFO, LATCH, decode_information
from tests.zookeeper_log import CREATE, DELETE, SET_DATA, Transaction


@dataclass(frozen=True)
class Confirmed:
    """A leader let others find it."""

    at: float
    """Seconds since the epoch."""
    component: str
    process: str
    session: str
    fence: str


class Leaders:
    """Holds each transaction to this: what is written is written by whoever leads, and nobody who
    led once leads again after another one.

    Raises:
        AssertionError: one that should not have happened.
    """

    def __init__(self, root: str, transactions: Iterable[Transaction]) -> None:
        """*root*: the cluster's znode."""
        self._root = f"{root}/leader/"
        self.confirmed: list[Confirmed] = []
        self.effects: dict[str, int] = defaultdict(int)
        """How many transactions each fence has let through."""
        self._latches: dict[str, set[str]] = defaultdict(set)
        """Those that are there now, by the component."""
        self._last: dict[str, str] = {}
        """The fence of the last leader that has done something, by the component."""
        self._session_of: dict[str, str] = {}
        """By the fence."""
        for transaction in transactions:
            if any(it.path.startswith(f"{root}/") for it in transaction.operations):
                self._happened(transaction)

    def _happened(self, transaction: Transaction) -> None:
        fences = [path for path in transaction.checked if f"/{LATCH}/" in path]
        for fence in fences:
            self._let_through(fence, transaction)
        for operation in transaction.operations:
            component, is_latch, latch = operation.path.partition(f"/{LATCH}/")
            if is_latch and operation.kind == CREATE:
                self._latches[component].add(latch)
            elif is_latch and operation.kind == DELETE:
                self._latches[component].discard(latch)
            elif operation.kind in (CREATE, SET_DATA) and operation.data:
                assert fences, f"nobody answers for {transaction}"
                if operation.path.endswith(f"/{CONNECTION_INFO}"):
                    self._confirmed(transaction.at, operation.path, operation.data, fences[0])

    def _let_through(self, fence: str, transaction: Transaction) -> None:
        component, _, latch = fence.partition(f"/{LATCH}/")
        first = min(self._latches[component], key=_number, default=None)
        assert latch == first, f"{first} leads {component}: {transaction}"
        before = self._last.get(component, fence)
        assert _number(before) <= _number(fence), f"{before} has led {component}: {transaction}"
        self._last[component] = fence
        self.effects[fence] += 1

    def _confirmed(self, at: float, path: str, data: bytes, fence: str) -> None:
        information = decode_information(data)
        assert information is not None
        session = information.session_id.hex()
        assert self._session_of.setdefault(fence, session) == session, f"two sessions of {fence}"
        others = {it.fence for it in self.confirmed if it.session == session}
        assert others <= {fence}, f"session {session} is that of {others} already"
        component = path.removesuffix(f"/{CONNECTION_INFO}").removeprefix(self._root)
        process = information.address.partition("/")[0]
        if not others:
            self.confirmed.append(Confirmed(at, component, process, session, fence))

    def next_after(self, at: float, process: str) -> Confirmed | None:
        """Who led what *process* led when it died; None: it led nothing, or nobody did then."""
        before = [it for it in self.confirmed if it.at <= at]
        last = {it.component: it for it in before}
        led = [it.component for it in last.values() if it.process == process]
        after = (it for it in self.confirmed if it.at > at and it.component in led)
        return next(after, None)


def _number(latch: str) -> int:
    return int(latch[-10:])
