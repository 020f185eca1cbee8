"""A database that streams write to: transactions that are prepared, then committed by their names.

It outlives everything, forgets nothing, and knows what may never come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flinkray.testing.simulation import Simulation


@dataclass(frozen=True)
class Written:
    """What the job makes of one record."""

    split: int
    number: int
    """Within the split, from 0 on."""
    key: int
    count: int
    """How many of its key had come by then, as the keyed state says."""


@dataclass(frozen=True)
class Fired:
    """What the job says of a key when event time ends."""

    key: int
    count: int
    """Of its records since it was said last."""


Result = Written | Fired


@dataclass(frozen=True)
class Transaction:
    """What a sink has written between two checkpoints."""

    name: str
    checkpoint_id: int
    """With which, or with a later one, it is to be committed; 0: that is told later."""
    records: tuple[Result, ...]


class ExternalSystem:
    """See the module.  Whatever must not be, it tells *simulation*, which ends there."""

    def __init__(
        self, simulation: Simulation, *, is_exactly_once: bool, is_in_order: bool = True
    ) -> None:
        """*is_in_order*: whether the transactions of a key come in their order.  Those that wait
        for a checkpoint go to several subtasks when a job goes on with more of them."""
        self._simulation = simulation
        self.is_exactly_once = is_exactly_once
        self.is_in_order = is_in_order
        self.prepared: dict[str, Transaction] = {}
        self.committed: dict[tuple[int, int], str] = {}
        """Split and number of each record -> the transaction."""
        self.transactions: dict[str, None] = {}
        """Those that are committed, in order."""
        self.output_is_prepared = self.output_is_finished = False
        """Of the output format, as a whole."""
        self.closed_outputs: set[int] = set()
        """Subtasks that have closed their part of the output."""
        self.failing = 0.0
        """Share of the calls that fail, some of them after they had their effect."""
        self.may_commit = self._may
        self.latest_completed: Callable[[], int] = lambda: 0
        """Id of the latest checkpoint that is."""
        self._latest: dict[tuple[int, int], int] = {}
        """Of a split and a key, the number of the last record."""
        self._numbers: set[tuple[int, int]] = set()
        """A key, and as the how-many-th of it a record was counted."""
        self.counts: dict[int, int] = {}
        """How many records of each key are committed."""
        self.fired: dict[int, int] = {}
        """Of how many the ends of event time have told; at most of those that are committed."""

    @staticmethod
    def _may(transaction: Transaction) -> None:
        """Always."""

    def prepare(self, transaction: Transaction) -> None:
        """It is kept, and not seen."""
        self._fail_perhaps("prepare", 0.5)
        self.prepared[transaction.name] = transaction
        self._fail_perhaps("prepare", 0.5)

    def cover(self, names: Sequence[str], checkpoint_id: int) -> None:
        """These transactions belong to that checkpoint."""
        for name in names:
            self.prepared[name] = replace(self.prepared[name], checkpoint_id=checkpoint_id)

    def commit(self, names: Sequence[str]) -> None:
        """They are seen from now on; those that are already, stay as they are."""
        for name in names:
            self._fail_perhaps("commit", 0.5)
            if name not in self.transactions:
                self._commit(name)
            self._fail_perhaps("commit", 0.5)

    def _fail_perhaps(self, what: str, share: float) -> None:
        if self.failing and self._simulation.random.random() < self.failing * share:
            raise OSError(f"the external system does not {what}")

    def _commit(self, name: str) -> None:
        transaction = self.prepared.get(name)
        if transaction is None:
            self.violated(f"transaction {name} is committed, and was never prepared")
            return
        self.may_commit(transaction)
        self.transactions[name] = None
        self._simulation.tell(
            "%d records of checkpoint %d are committed: %s",
            len(transaction.records),
            transaction.checkpoint_id,
            name,
        )
        for record in transaction.records:
            if isinstance(record, Fired):
                self._fire(record)
            else:
                self._add(record, name)

    def _fire(self, fired: Fired) -> None:
        total = self.fired[fired.key] = self.fired.get(fired.key, 0) + fired.count
        committed = self.counts.get(fired.key, 0)
        if self.is_exactly_once and self.is_in_order and total > committed:
            self.violated(f"{fired}: {total} of {committed} records were told of")

    def _add(self, record: Written, name: str) -> None:
        known = self.committed.setdefault((record.split, record.number), name)
        if not self.is_exactly_once:
            return
        if known != name:
            self.violated(f"{record} is committed twice: by {known} and by {name}")
        count = self.counts[record.key] = self.counts.get(record.key, 0) + 1
        if not self.is_in_order:
            self._add_to_numbers(record)
            return
        latest = self._latest.get((record.split, record.key), -1)
        if record.number <= latest:
            self.violated(f"{record} is committed after number {latest}")
        self._latest[record.split, record.key] = record.number
        if record.count != count:
            self.violated(f"{record} is number {count} of its key: it was counted otherwise")

    def _add_to_numbers(self, record: Written) -> None:
        if (record.key, record.count) in self._numbers:
            self.violated(f"{record} has the number of another record of its key")
        self._numbers.add((record.key, record.count))

    def numbers_that_are_missing(self) -> list[tuple[int, int]]:
        """Keys and numbers, of as many records as are committed; when all are."""
        wanted = ((key, n + 1) for key, number in self.counts.items() for n in range(number))
        return [] if self.is_in_order else [it for it in wanted if it not in self._numbers]

    def violated(self, what: str) -> None:
        """Ends the run; what is raised in a task would only fail that."""
        self._simulation.scheduler.fail(AssertionError(what))
