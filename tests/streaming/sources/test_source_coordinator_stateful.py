"""A source's coordinator between readers and a JobMaster that fail, restart and repeat themselves:
each record is read once on the way that leads to the result."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.clock import Clock
from flinkray.core.records import decode_record, encode_record
from flinkray.rpc.wire import codec
from flinkray.streaming.sources.coordinator import NO_MORE_SPLITS, SourceCoordinator
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from flinkray.streaming.sources.source_progress import (
    EnumeratorState,
    SourceProgress,
    read_enumerator_state,
)
from flinkray.testing.manual_clock import ManualClock

RECORDS = 3
"""In a split."""
MOST_SPLITS = 40
Split = tuple[int, int]
"""Number and offset."""
Record = tuple[int, int]


def records(splits: Iterable[Split]) -> Counter[Record]:
    """That are still to be read."""
    return Counter((n, place) for n, offset in splits for place in range(offset, RECORDS))


@dataclass
class World:
    """What there is to be found."""

    splits: int = 0
    has_ended: bool = False
    pushes: bool = False
    """Whether splits that are found go to readers that have not asked."""
    tells_all: bool = False
    """Whether all readers are told with the last split that there are no more."""


class FindingEnumerator(SplitEnumerator[Split]):
    """Finds splits one after the other; some readers wait for them."""

    def __init__(self, context: EnumeratorContext[Split], world: World) -> None:
        super().__init__(context)
        self.world = world
        self.found = 0
        self.remaining: list[Split] = []
        self.waiting: list[int] = []
        self.added: list[int] = []

    def add_reader(self, subtask: int) -> None:
        self.added.append(subtask)

    def handle_split_request(self, subtask: int) -> None:
        has_all = self.world.has_ended and self.found == self.world.splits
        if self.remaining:
            self.context.assign_split(self.remaining.pop(0), subtask)
            if self.world.tells_all and has_all and not self.remaining:
                for reader in self.added:
                    self.context.signal_no_more_splits(reader)
        elif has_all:
            self.context.signal_no_more_splits(subtask)
        else:
            self.waiting.append(subtask)

    def discover(self) -> None:
        for number in range(self.found, self.world.splits):
            if self.world.pushes:
                subtask = number % self.context.current_parallelism()
                self.context.assign_split((number, 0), subtask)
            else:
                self.remaining.append((number, 0))
        self.found = self.world.splits
        waiting, self.waiting = self.waiting, []
        for subtask in waiting:
            self.handle_split_request(subtask)

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self.remaining += splits

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.found, list(self.remaining)

    def restore(self, checkpoint: Any) -> None:
        self.found, remaining = checkpoint
        self.remaining = list(remaining)


class FindingSource(Source[Any, Split]):
    def __init__(self, world: World) -> None:
        self.world = world

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Split], clock: Clock
    ) -> SplitEnumerator[Split]:
        return FindingEnumerator(context, self.world)

    def create_reader(self, context: ReaderContext) -> SourceReader[Split]:
        raise NotImplementedError


@dataclass
class Reader:
    """An attempt of a subtask, its task, and the client that asks for its splits."""

    attempt: int
    restored_from: int
    splits: list[Split] = field(default_factory=list)
    read: Counter[Record] = field(default_factory=Counter)
    """On the way that led here: what a sink would have."""
    requests: int = 0
    position: int = 0
    checkpoint_id: int = 0
    awaited: int = 0
    """Splits that it has asked for and does not have."""
    has_ended: bool = False
    ordered: deque[int] = field(default_factory=deque)
    """Checkpoints of which it will hear."""
    triggered: deque[int] = field(default_factory=deque)
    """Those that it has not taken its snapshot for."""

    def take(self, events: Sequence[Any]) -> None:
        for event in events:
            self.position += 1
            if event is NO_MORE_SPLITS:
                self.has_ended = True
            else:
                assert not self.has_ended, "it may have ended, and reads no more"
                self.splits.append(event)
            self.awaited = max(0, self.awaited - 1)

    def ask(self) -> None:
        """It has a split ahead of the one that it reads."""
        while not self.has_ended and len(self.splits) + self.awaited < 2:
            self.requests += 1
            self.awaited += 1

    def read_on(self) -> None:
        number, offset = self.splits[0]
        self.read[number, offset] += 1
        if offset + 1 < RECORDS:
            self.splits[0] = number, offset + 1
        else:
            del self.splits[0]


@dataclass
class Part:
    """Of a reader, in a checkpoint."""

    splits: list[Split]
    read: Counter[Record]


@dataclass
class Taken:
    """A checkpoint, complete or not."""

    checkpoint_id: int
    is_savepoint: bool = False
    state: EnumeratorState | None = None
    parts: dict[int, Part] = field(default_factory=dict)


def asked(reader: Reader, subtask: int) -> Callable[[SourceCoordinator], None]:
    """What a reader says of itself; it may arrive more than once, and late."""
    said = replace(reader)
    return lambda coordinator: coordinator.heard(
        subtask,
        said.attempt,
        said.requests,
        said.position,
        said.checkpoint_id,
        said.restored_from,
    )


readers = st.integers(0, 2)
Exchange = tuple[int, bool, int]
"""Reader, whether the answer is lost, and how much it reads then."""
exchanges = st.lists(st.tuples(readers, st.booleans(), st.integers(0, 6)), max_size=6)


class SourceMachine(RuleBasedStateMachine):
    """The JobMaster tells the coordinator one thing after the other; readers talk to it between."""

    @initialize(
        parallelism=st.integers(1, 3),
        pushes=st.booleans(),
        splits=st.integers(5, 20),
        tells_all=st.booleans(),
        has_ended=st.booleans(),
    )
    def begin(
        self, parallelism: int, pushes: bool, splits: int, tells_all: bool, has_ended: bool
    ) -> None:
        self.world = World(splits, has_ended, pushes, tells_all)
        self.calls: deque[Callable[[], None]] = deque()
        """Of the JobMaster."""
        self.late: list[Callable[[SourceCoordinator], None]] = []
        """What readers have said to this coordinator."""
        self.last_id = 0
        self.attempts = 0
        self.pending: dict[int, Taken] = {}
        self.latest: Taken = Taken(0)
        self.restores = 0
        self.is_restored = True
        """Readers of today's attempts talk to today's coordinator."""
        self.readers = {subtask: Reader(0, 0) for subtask in range(parallelism)}
        self.latest.parts = {subtask: Part([], Counter()) for subtask in self.readers}
        self.coordinator = self.new_coordinator(self.latest, parallelism)
        self.coordinator.discover()

    def new_coordinator(self, restored: Taken, parallelism: int) -> SourceCoordinator:
        state = restored.state
        if state is not None:
            state = decode_record(encode_record(state), EnumeratorState)
        coordinator = SourceCoordinator(
            ManualClock(), state=state, checkpoint_id=restored.checkpoint_id
        )
        coordinator.start(FindingSource(self.world), parallelism)
        return coordinator

    def reader(self, number: int) -> tuple[int, Reader]:
        subtask = number % len(self.readers)
        return subtask, self.readers[subtask]

    # --- the world ----------------------------------------------------------------------------

    @precondition(lambda self: not self.world.has_ended)
    @rule(splits=st.integers(1, 9))
    def more_splits_are_found(self, splits: int) -> None:
        self.world.splits += splits
        self.world.has_ended = self.world.splits >= MOST_SPLITS
        self.coordinator.discover()

    # --- readers ------------------------------------------------------------------------------

    @precondition(lambda self: self.is_restored)
    @rule(number=readers, is_answer_lost=st.booleans())
    def reader_exchanges(self, number: int, is_answer_lost: bool) -> None:
        subtask, reader = self.reader(number)
        reader.ask()
        say = asked(reader, subtask)
        say(self.coordinator)
        self.late.append(say)
        events = self.coordinator.events(subtask, reader.attempt, reader.position)
        assert events is not None
        if not reader.triggered and not is_answer_lost:
            reader.take(self.decoded(events))

    def decoded(self, events: Iterable[Any]) -> list[Any]:
        return list(events)

    @precondition(lambda self: self.late)
    @rule(choice=st.integers(0, 10**6))
    def what_a_reader_said_arrives_again(self, choice: int) -> None:
        self.late[choice % len(self.late)](self.coordinator)

    @rule(number=readers, count=st.integers(1, 4))
    def reader_reads(self, number: int, count: int) -> None:
        _, reader = self.reader(number)
        for _ in range(count):
            if reader.splits:
                reader.read_on()

    @rule(number=readers)
    def reader_is_triggered(self, number: int) -> None:
        _, reader = self.reader(number)
        if reader.ordered:
            reader.triggered.append(reader.ordered.popleft())

    @rule(number=readers, is_answer_lost=st.booleans())
    def reader_takes_its_snapshot(self, number: int, is_answer_lost: bool) -> None:
        subtask, reader = self.reader(number)
        if not reader.triggered or not self.is_restored:
            return
        checkpoint_id = reader.triggered[0]
        events = self.coordinator.events_before(
            checkpoint_id, subtask, reader.attempt, reader.position
        )
        taken = self.pending.get(checkpoint_id)
        assert events is not None or taken is None
        if is_answer_lost:
            return
        reader.triggered.popleft()
        reader.take(self.decoded(events or ()))
        reader.checkpoint_id = checkpoint_id
        if taken is not None:
            taken.parts[subtask] = Part([*reader.splits], Counter(reader.read))

    # --- the JobMaster ------------------------------------------------------------------------

    @precondition(lambda self: self.calls)
    @rule(count=st.integers(1, 3))
    def coordinator_is_called(self, count: int) -> None:
        for _ in range(min(count, len(self.calls))):
            self.calls.popleft()()

    def is_told_all(self) -> None:
        while self.calls:
            self.calls.popleft()()

    def call(self, function: Callable[[SourceCoordinator], Any]) -> None:
        self.calls.append(lambda: function(self.coordinator))

    @precondition(lambda self: self.is_restored and len(self.pending) < 3)
    @rule(is_savepoint=st.booleans())
    def checkpoint_begins(self, is_savepoint: bool) -> None:
        self.last_id += 1
        taken = self.pending[self.last_id] = Taken(self.last_id, is_savepoint)
        self.calls.append(lambda: self.take(taken))

    def take(self, taken: Taken) -> None:
        taken.state = self.coordinator.snapshot(taken.checkpoint_id)
        if taken.checkpoint_id in self.pending:
            for reader in self.readers.values():
                reader.ordered.append(taken.checkpoint_id)

    def abort(self, taken: Taken) -> None:
        del self.pending[taken.checkpoint_id]
        self.call(partial(_aborted, taken.checkpoint_id))

    @precondition(lambda self: self.pending)
    @rule(choice=st.integers(0, 10**6), readers_hear=st.booleans())
    def checkpoint_is_aborted(self, choice: int, readers_hear: bool) -> None:
        ids = sorted(self.pending)
        taken = self.pending[ids[choice % len(ids)]]
        self.abort(taken)
        if readers_hear:
            for reader in self.readers.values():
                for waiting in (reader.ordered, reader.triggered):
                    if taken.checkpoint_id in waiting:
                        waiting.remove(taken.checkpoint_id)

    @rule()
    def acknowledged_checkpoints_complete(self) -> None:
        for taken in sorted(self.pending.values(), key=lambda it: it.checkpoint_id):
            if taken.state is None or len(taken.parts) < len(self.readers):
                continue
            del self.pending[taken.checkpoint_id]
            self.check(taken)
            if not taken.is_savepoint:
                self.latest = taken
                for earlier in list(self.pending.values()):
                    if earlier.checkpoint_id < taken.checkpoint_id and not earlier.is_savepoint:
                        self.abort(earlier)
                self.call(partial(_completed, taken.checkpoint_id))
            return

    @precondition(lambda self: self.is_restored and len(self.pending) < 3)
    @rule(
        before=exchanges,
        between=st.lists(exchanges, min_size=3, max_size=3),
        is_savepoint=st.integers(0, 3).map(lambda it: it == 0),
        is_told=st.booleans(),
        restarted=st.sets(readers, max_size=1),
        after=exchanges,
    )
    def checkpoint_is_taken(
        self,
        before: list[Exchange],
        between: list[list[Exchange]],
        is_savepoint: bool,
        is_told: bool,
        restarted: set[int],
        after: list[Exchange],
    ) -> None:
        """*restarted*: the reader that fails at once, if any."""
        self.exchange(before)
        self.checkpoint_begins(is_savepoint)
        self.is_told_all()
        for (subtask, reader), meanwhile in zip(self.readers.items(), between, strict=False):
            self.exchange(meanwhile)
            while reader.ordered:
                self.reader_is_triggered(subtask)
            while reader.triggered:
                self.reader_takes_its_snapshot(subtask, False)
        self.acknowledged_checkpoints_complete()
        if is_told:
            self.is_told_all()
        if restarted:
            self.tasks_are_restarted(restarted, is_told)
            self.exchange(after)

    @precondition(lambda self: self.is_restored)
    @rule(which=exchanges)
    def exchange(self, which: list[Exchange]) -> None:
        for number, is_answer_lost, count in which:
            self.reader_exchanges(number, is_answer_lost)
            self.reader_reads(number, count)

    def check(self, taken: Taken) -> None:
        """Everything is in it, once."""
        assert taken.state is not None
        found, remaining = read_enumerator_state(taken.state)
        splits = [split for part in taken.parts.values() for split in part.splits]
        there = records([*remaining, *splits])
        for part in taken.parts.values():
            there += part.read
        assert there == records((number, 0) for number in range(found))

    def restored_reader(self, subtask: int) -> Reader:
        self.attempts += 1
        part = self.latest.parts[subtask]
        latest = self.latest.checkpoint_id
        return Reader(self.attempts, latest, [*part.splits], Counter(part.read))

    @precondition(lambda self: self.is_restored)
    @rule(which=st.sets(readers, min_size=1), is_told=st.booleans())
    def tasks_are_restarted(self, which: set[int], is_told: bool) -> None:
        """*is_told*: the coordinator hears of it before it hears of any of the new attempts."""
        for taken in list(self.pending.values()):
            self.abort(taken)
        for subtask in sorted({number % len(self.readers) for number in which}):
            reader = self.readers[subtask] = self.restored_reader(subtask)
            self.call(partial(_reset, subtask, reader.attempt, self.latest.checkpoint_id))
        for reader in self.readers.values():
            reader.ordered.clear()
            reader.triggered.clear()
        if is_told:
            self.is_told_all()

    @precondition(lambda self: self.latest.checkpoint_id)
    @rule(parallelism=st.integers(1, 3), is_told=st.booleans())
    def all_is_restored(self, parallelism: int, is_told: bool) -> None:
        for taken in list(self.pending.values()):
            self.abort(taken)
        latest = self.latest
        if parallelism != len(latest.parts):
            parts = [Part([], Counter()) for _ in range(parallelism)]
            splits = [split for part in latest.parts.values() for split in part.splits]
            for number, split in enumerate(splits):
                parts[number % parallelism].splits.append(split)
            for part in latest.parts.values():
                parts[0].read += part.read
            latest = self.latest = replace(latest, parts=dict(enumerate(parts)))
        self.readers = {subtask: self.restored_reader(subtask) for subtask in range(parallelism)}
        self.is_restored = False
        self.restores += 1
        restores = self.restores
        self.calls.append(lambda: self.restore(restores, latest, parallelism))
        if is_told:
            self.is_told_all()

    def restore(self, restores: int, latest: Taken, parallelism: int) -> None:
        self.coordinator = self.new_coordinator(latest, parallelism)
        self.late.clear()
        self.is_restored = restores == self.restores

    def all_goes_well(self) -> None:
        """At the end."""

    # --- the end ------------------------------------------------------------------------------

    @invariant()
    def no_record_is_read_twice(self) -> None:
        if hasattr(self, "readers"):
            every: Counter[Record] = Counter()
            for reader in self.readers.values():
                every += reader.read
            assert all(number == 1 for number in every.values()), every

    def teardown(self) -> None:
        """All goes well from now on: each record is in the result once."""
        if not hasattr(self, "readers"):
            return
        self.world.has_ended = True
        self.is_told_all()
        for taken in list(self.pending.values()):
            self.abort(taken)
        self.is_told_all()
        for reader in self.readers.values():
            reader.ordered.clear()
            reader.triggered.clear()
        for _ in range(10 * MOST_SPLITS):
            if all(reader.has_ended and not reader.splits for reader in self.readers.values()):
                break
            self.coordinator.discover()
            for subtask in self.readers:
                self.all_goes_well()
                self.reader_exchanges(subtask, False)
                self.reader_reads(subtask, RECORDS)
        assert sum((reader.read for reader in self.readers.values()), Counter()) == records(
            (number, 0) for number in range(self.world.splits)
        )


def _completed(checkpoint_id: int, coordinator: SourceCoordinator) -> None:
    coordinator.checkpoint_completed(checkpoint_id)


def _aborted(checkpoint_id: int, coordinator: SourceCoordinator) -> None:
    coordinator.checkpoint_aborted(checkpoint_id)


def _reset(subtask: int, attempt: int, checkpoint_id: int, coordinator: SourceCoordinator) -> None:
    coordinator.reset_subtask(subtask, attempt, checkpoint_id)


class KeptSourceMachine(SourceMachine):
    """What the coordinator knows is kept elsewhere, and it dies at any time: another one goes on
    from there, and readers notice nothing.  Orders are given again that it had not answered; it
    answers when what follows from them is kept."""

    kept: SourceProgress | None = None
    """None: nothing since all was restored."""

    def new_coordinator(self, restored: Taken, parallelism: int) -> SourceCoordinator:
        self.kept, self.begun_from = None, (restored, parallelism)
        coordinator = self.coordinator_of(restored)
        coordinator.start(FindingSource(self.world), parallelism)
        return coordinator

    def coordinator_of(
        self, restored: Taken, progress: SourceProgress | None = None
    ) -> SourceCoordinator:
        return SourceCoordinator(
            ManualClock(),
            pickle.dumps,
            restored.state,
            restored.checkpoint_id,
            decode=pickle.loads,
            progress=progress,
            is_kept=True,
        )

    def decoded(self, events: Iterable[Any]) -> list[Any]:
        return [e if e is NO_MORE_SPLITS else pickle.loads(e) for e in events]

    @rule()
    def what_it_knows_is_kept(self) -> None:
        progress = self.coordinator.progress()
        self.kept = codec.decode(codec.encode(progress))
        self.coordinator.kept(progress)

    def all_goes_well(self) -> None:
        self.what_it_knows_is_kept()

    def call(self, function: Callable[[SourceCoordinator], Any]) -> None:
        def answered() -> None:
            function(self.coordinator)
            self.what_it_knows_is_kept()

        self.calls.append(answered)

    def take(self, taken: Taken) -> None:
        if self.coordinator.owes_splits:  # a cut waits for the first reader then
            self.coordinator.start(FindingSource(self.world), self.begun_from[1])
        super().take(taken)
        self.what_it_knows_is_kept()

    @rule(orders=st.integers(0, 2))
    def coordinator_dies(self, orders: int) -> None:
        """*orders*: so many come before the first reader, with which the next one begins."""
        restored, parallelism = self.begun_from
        if self.kept is None:
            self.coordinator = self.new_coordinator(restored, parallelism)
            return
        coordinator = self.coordinator = self.coordinator_of(restored, self.kept)
        self.coordinator_is_called_if_it_may(orders)
        if self.coordinator is coordinator and not coordinator.parallelism:
            coordinator.start(FindingSource(self.world), parallelism)

    @precondition(lambda self: self.is_restored and len(self.pending) < 3)
    @rule(which=st.sets(readers, min_size=1), is_dead_twice=st.booleans())
    def coordinator_dies_as_tasks_are_restarted(self, which: set[int], is_dead_twice: bool) -> None:
        """It is told of them, and to make a cut, before it hears of any of them."""
        self.is_told_all()
        if not self.is_restored:
            return
        self.tasks_are_restarted(which, False)
        if is_dead_twice:
            self.coordinator_dies(len(self.calls))
        self.checkpoint_begins(False)
        self.coordinator_dies(len(self.calls))

    def coordinator_is_called_if_it_may(self, orders: int) -> None:
        for _ in range(min(orders, len(self.calls))):
            self.calls.popleft()()

    @precondition(lambda self: self.calls)
    @rule()
    def coordinator_dies_before_it_answers(self) -> None:
        """What the order has done is known to nobody; a checkpoint that it was to take is over."""
        order = self.calls[0]
        kept, pending = self.kept, set(self.pending)
        ordered = {n: deque(reader.ordered) for n, reader in self.readers.items()}
        coordinator, restores = self.coordinator, self.is_restored
        order()
        if self.coordinator is not coordinator:  # it was restored: there is nothing to be repeated
            self.calls.popleft()
            return
        assert pending == set(self.pending)
        assert restores == self.is_restored
        self.kept = kept
        for number, reader in self.readers.items():
            if reader.ordered != ordered[number]:
                reader.ordered = ordered[number]
        self.coordinator_dies(0)


TestSources = SourceMachine.TestCase
TestSources.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestKeptSources = KeptSourceMachine.TestCase
TestKeptSources.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
