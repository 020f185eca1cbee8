"""A source's coordinator: what readers are told, by attempts, and across checkpoints."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from flinkray.core.clock import Clock
from flinkray.core.records import decode_record, encode_record
from flinkray.state.errors import StateError
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.coordinator import NO_MORE_SPLITS, SourceCoordinator
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from flinkray.streaming.sources.source_progress import EnumeratorState
from flinkray.testing.manual_clock import ManualClock


class Noting(FixedSplitsEnumerator[str]):
    """Tells what it is asked."""

    def __init__(self, context: EnumeratorContext[str], notes: list[Any]) -> None:
        super().__init__(context, ["a", "b", "c"])
        self.notes = notes

    def add_reader(self, subtask: int) -> None:
        super().add_reader(subtask)
        self.notes.append(("reader", subtask))

    def add_splits_back(self, splits: Any, subtask: int) -> None:
        self.notes.append(("back", list(splits), subtask))
        super().add_splits_back(splits, subtask)

    def next_discovery_time(self) -> float | None:
        return 7.0

    def discover(self) -> None:
        self.context.assign_split("found", 1)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notes.append(("complete", checkpoint_id))

    def close(self) -> None:
        self.notes.append("closed")


class ThreeSplits(Source[Any, str]):
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[str], clock: Clock
    ) -> SplitEnumerator[str]:
        return Noting(context, self.notes)

    def create_reader(self, context: ReaderContext) -> SourceReader[str]:
        raise NotImplementedError


def new(source: Source[Any], **options: Any) -> SourceCoordinator:
    coordinator = SourceCoordinator(ManualClock(), **options)
    coordinator.start(source, 2)
    return coordinator


def test_repeated_request_of_a_reader_for_a_split_gets_one_split() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.heard(0, 0, 1)
    assert coordinator.events(0, 0, 0) == ("a",)
    coordinator.heard(0, 0, 4)
    assert coordinator.events(0, 0, 1) == ("b", "c", NO_MORE_SPLITS)
    assert coordinator.events(0, 0, 4) == ()


def test_all_readers_are_told_that_the_last_split_was_assigned() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.heard(1, 0, 1)
    assert coordinator.events(1, 0, 0) == ("b",)
    coordinator.heard(0, 0, 2)
    assert coordinator.events(0, 0, 1) == ("c", NO_MORE_SPLITS)
    assert coordinator.events(1, 0, 1) == (NO_MORE_SPLITS,)


def test_reader_that_was_told_to_end_gets_no_splits_that_are_returned_later() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.heard(1, 0, 2)
    coordinator.heard(1, 1, 0)  # it failed, and b and c came back
    coordinator.heard(0, 0, 2)  # asked before it heard
    assert coordinator.events(0, 0, 1) == (NO_MORE_SPLITS,)
    coordinator.heard(1, 1, 2)
    assert coordinator.events(1, 1, 0) == ("b", "c", NO_MORE_SPLITS)


def test_source_coordinator_lists_the_subtasks_that_were_not_sent_no_more_splits() -> None:
    coordinator = new(ThreeSplits())
    assert coordinator.reading_subtasks() == [0, 1]
    coordinator.heard(1, 0, 1)
    coordinator.heard(0, 0, 2)
    assert coordinator.reading_subtasks() == []
    coordinator.heard(1, 1, 0)  # it failed
    assert coordinator.reading_subtasks() == [1]


def test_splits_of_an_attempt_are_returned_when_its_next_attempt_starts() -> None:
    source = ThreeSplits()
    coordinator = new(source)
    coordinator.heard(1, 0, 2)
    coordinator.heard(1, 1, 0)
    assert source.notes == [("reader", 1), ("back", ["a", "b"], 1), ("reader", 1)]
    coordinator.heard(1, 0, 5)  # last words
    assert coordinator.events(1, 0, 0) is None
    coordinator.heard(1, 1, 3)
    assert coordinator.events(1, 1, 0) == ("c", "a", "b", NO_MORE_SPLITS)


def test_splits_are_encoded_for_readers_and_decoded_on_return() -> None:
    source = ThreeSplits()
    coordinator = new(source, encode=str.encode, decode=bytes.decode)
    coordinator.heard(0, 0, 1)
    assert coordinator.events(0, 0, 0) == (b"a",)
    coordinator.heard(0, 1, 0)
    assert ("back", ["a"], 0) in source.notes


def test_splits_assigned_before_a_reader_has_sent_a_message_are_kept_for_the_reader() -> None:
    coordinator = new(ThreeSplits())
    assert coordinator.next_discovery_time() == 7.0
    coordinator.discover()
    assert coordinator.events(1, 0, 0) is None
    coordinator.heard(1, 0, 0)
    assert coordinator.events(1, 0, 0) == ("found",)


def test_restored_checkpoint_assigns_the_splits_that_were_unassigned_in_it() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    state = coordinator.snapshot(1)
    coordinator.heard(0, 0, 2)
    restored = new(ThreeSplits(), state=state, checkpoint_id=1)
    restored.heard(0, 1, 3, restored_from=1)
    assert restored.events(0, 1, 0) == ("b", "c", NO_MORE_SPLITS)


def test_splits_assigned_after_a_snapshot_reach_readers_after_the_checkpoint_trigger() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.snapshot(7)
    coordinator.heard(0, 0, 2)
    coordinator.heard(1, 0, 1)
    assert coordinator.events(0, 0, 0) == ("a",)
    assert coordinator.events(1, 0, 0) == ()
    assert coordinator.events_before(7, 0, 0, 0) == ("a",)
    assert coordinator.events_before(7, 1, 0, 0) == ()
    coordinator.heard(0, 0, 2, position=1, checkpoint_id=7)
    assert coordinator.events(0, 0, 1) == ("b", NO_MORE_SPLITS)
    coordinator.checkpoint_aborted(7)
    assert coordinator.events(1, 0, 0) == ("c", NO_MORE_SPLITS)
    assert coordinator.events_before(7, 1, 0, 0) is None


def test_coordinator_lists_no_events_for_replaced_readers_or_completed_checkpoints() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 1, 1)
    coordinator.snapshot(1)
    assert coordinator.events_before(1, 0, 0, 0) is None
    assert coordinator.events_before(2, 0, 1, 0) is None
    coordinator.snapshot(2)
    coordinator.checkpoint_completed(1)
    assert coordinator.events_before(1, 0, 1, 0) is None
    assert coordinator.events_before(2, 0, 1, 0) == ("a",)


def test_reader_waits_for_no_events_at_a_checkpoint_before_the_enumerator_starts() -> None:
    """No reader has sent a message when the first checkpoint is taken."""
    coordinator = SourceCoordinator(ManualClock())
    for checkpoint_id in (1, 2):
        assert coordinator.snapshot(checkpoint_id) is None
    assert coordinator.events_before(1, 0, 0, 0) == ()
    coordinator.checkpoint_completed(1)
    assert coordinator.events_before(1, 0, 0, 0) is None
    coordinator.start(ThreeSplits(), 2)
    coordinator.heard(0, 0, 1)
    assert coordinator.events(0, 0, 0) == ()
    assert coordinator.events_before(2, 0, 0, 0) == ()
    coordinator.reset_subtask(0, 1, 1)  # not to what it began with
    coordinator.heard(0, 1, 3, restored_from=1)
    assert coordinator.events(0, 1, 0) == ("b", "c", "a", NO_MORE_SPLITS)


def test_restored_enumerator_state_is_in_snapshots_taken_before_enumerator_start() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    state = coordinator.snapshot(1)
    restored = SourceCoordinator(ManualClock(), state=state, checkpoint_id=1)
    restored.reset_subtask(0, 3, 1)  # nothing was assigned
    assert restored.next_discovery_time() is None
    assert restored.snapshot(2) == state
    restored.close()


def test_repeated_reset_of_a_reader_returns_splits_after_the_checkpoint_only_once() -> None:
    source = ThreeSplits()
    coordinator = new(source)
    coordinator.heard(0, 0, 1)
    coordinator.snapshot(1)
    coordinator.heard(0, 0, 2)
    coordinator.checkpoint_completed(1)
    source.notes.clear()
    coordinator.reset_subtask(0, 1, 1)
    coordinator.reset_subtask(0, 1, 1)
    coordinator.heard(0, 0, 3)  # last words
    coordinator.heard(0, 1, 0, restored_from=1)
    coordinator.reset_subtask(0, 1, 1)
    coordinator.heard(0, 1, 3, restored_from=1)
    assert source.notes == [("back", ["b"], 0), ("reader", 0)]
    assert coordinator.events(0, 1, 0) == ("c", "b", NO_MORE_SPLITS)


def test_reset_of_a_reader_to_another_checkpoint_than_the_last_is_refused() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.snapshot(3)
    coordinator.checkpoint_completed(3)
    for said in (0, 2, 4):
        with pytest.raises(StreamError, match=rf"checkpoint {said} is none .*: there are \[3\]"):
            coordinator.reset_subtask(0, 1, said)
    coordinator.checkpoint_completed(2)  # late
    coordinator.reset_subtask(0, 1, 3)


def test_enumerator_is_notified_once_and_only_of_increasing_completed_checkpoints() -> None:
    source = ThreeSplits()
    coordinator = new(source)
    for checkpoint_id in (1, 2):
        coordinator.snapshot(checkpoint_id)
    for checkpoint_id in (2, 2, 1):
        coordinator.checkpoint_completed(checkpoint_id)
    assert source.notes == [("complete", 2)]


def test_source_coordinator_does_not_resend_events_that_a_reader_already_has() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 2)
    coordinator.heard(0, 0, 2, position=1)
    assert coordinator.events(0, 0, 0) is None
    assert coordinator.events(0, 0, 1) == ("b",)
    assert coordinator.events(1, 0, 0) is None


class Path:
    """A split that can be waited for."""


class Endless(FixedSplitsEnumerator[Path]):
    def handle_split_request(self, subtask: int) -> None:
        self.context.assign_split(Path(), subtask)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return None


class EndlessSource(ThreeSplits):
    def create_enumerator(
        self, context: EnumeratorContext[Any], clock: Clock
    ) -> SplitEnumerator[Any]:
        return Endless(context, [])


def test_source_coordinator_forgets_events_that_the_latest_checkpoint_does_not_need() -> None:
    encoded: weakref.WeakSet[Path] = weakref.WeakSet()

    def encode(split: Path) -> Path:
        event = Path()
        encoded.add(event)
        return event

    coordinator = new(EndlessSource(), encode=encode)
    for checkpoint_id in range(1, 20):
        coordinator.heard(0, 0, 10 * checkpoint_id, 10 * (checkpoint_id - 1), checkpoint_id - 1)
        coordinator.snapshot(checkpoint_id)
        coordinator.checkpoint_completed(checkpoint_id)
        assert len(encoded) == 10
    coordinator.heard(0, 0, 195, 190, 19)
    coordinator.heard(0, 0, 195, 193, 19)
    assert len(encoded) == 5


def test_assigning_a_split_to_a_missing_reader_is_refused() -> None:
    coordinator = new(ThreeSplits())
    for subtask in (-1, 2):
        with pytest.raises(StreamError, match=f"there is no reader {subtask}: they are 0 to 1"):
            coordinator.assign_split("x", subtask)


class Saying(ThreeSplits):
    """Its enumerator's state is what it is told."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def create_enumerator(
        self, context: EnumeratorContext[str], clock: Clock
    ) -> SplitEnumerator[str]:
        enumerator = Noting(context, self.notes)
        enumerator.snapshot_state = lambda checkpoint_id: self.state  # type: ignore[method-assign]
        enumerator.restore = self.notes.append  # type: ignore[method-assign, assignment]
        return enumerator


def test_later_changes_of_enumerator_state_are_not_in_its_snapshot() -> None:
    seen = {"a": Slice(1, 2)}
    source = Saying(seen)
    state = new(source).snapshot(1)
    assert state is not None
    seen["b"] = Slice(3, 4)
    new(source, state=decode_record(encode_record(state), EnumeratorState))
    assert source.notes == [{"a": Slice(1, 2)}]
    assert not state.serializer.pickled


def test_checkpoint_whose_enumerator_state_cannot_be_stored_triggers_no_reader() -> None:
    coordinator = new(Saying(threading.Lock()))
    coordinator.heard(0, 0, 1)
    with pytest.raises(StateError, match="cannot pickle"):
        coordinator.snapshot(1)
    assert coordinator.events_before(1, 0, 0, 0) is None
    assert coordinator.events(0, 0, 0) == ("a",)


def test_closing_the_coordinator_closes_the_enumerator() -> None:
    source = ThreeSplits()
    new(source).close()
    assert source.notes == ["closed"]


def test_restarted_reader_new_to_the_coordinator_gets_no_splits_of_an_old_attempt() -> None:
    """The coordinator died before it had heard of the reader. The reader was restarted after
    savepoint 1, so it takes no snapshot for the savepoint, and messages of its former attempt that
    arrive now change nothing."""
    before = new(ThreeSplits(), encode=str.encode, decode=bytes.decode)
    before.snapshot(1)
    after = SourceCoordinator(
        ManualClock(), str.encode, decode=bytes.decode, progress=before.progress()
    )
    after.reset_subtask(0, 1, 0)
    after.snapshot(2)
    after.start(ThreeSplits(), 2)
    after.heard(0, 0, 2)
    assert after.events_before(2, 0, 1, 0) == ()
    after.checkpoint_aborted(2)
    after.heard(0, 1, 1)
    assert after.events(0, 1, 0) == (b"a",)


def test_reader_that_was_reset_but_sent_no_message_is_not_stored_as_registered() -> None:
    """Seed 10 of masters that die: the next JobMaster believed that tasks had run."""
    coordinator = new(ThreeSplits(), encode=str.encode, decode=bytes.decode)
    coordinator.reset_subtask(0, 1, 0)
    changes = coordinator.changes
    assert [reader.is_added for reader in coordinator.progress().readers] == [False]
    coordinator.heard(0, 1, 0)
    assert coordinator.changes > changes, "the first call has to be kept"
    assert [reader.is_added for reader in coordinator.progress().readers] == [True]


class Cuts(FixedSplitsEnumerator[str]):
    """Its state: for which checkpoints it was asked for it, and what was left then."""

    keeps_cuts = True

    def __init__(self, context: EnumeratorContext[str]) -> None:
        super().__init__(context, ["a", "b"])
        self.cuts: dict[int, int] = {}

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self.cuts.setdefault(checkpoint_id, len(super().snapshot_state(checkpoint_id)))
        return self.cuts


class CutsSource(ThreeSplits):
    def create_enumerator(
        self, context: EnumeratorContext[Any], clock: Clock
    ) -> SplitEnumerator[Any]:
        self.enumerator = Cuts(context)
        return self.enumerator


def test_new_enumerator_is_told_of_earlier_checkpoints_before_it_assigns_splits() -> None:
    """No enumerator existed when checkpoint 1 was taken. Storing the progress later adds no cut."""
    source = CutsSource()
    coordinator = SourceCoordinator(ManualClock())
    coordinator.snapshot(1)
    coordinator.start(source, 1)
    coordinator.heard(0, 0, 1)
    coordinator.progress()
    assert source.enumerator.cuts == {1: 2}


@pytest.mark.parametrize(
    "speaks",
    [
        lambda coordinator: coordinator.heard(0, 0, 1, position=1),
        lambda coordinator: coordinator.events_before(1, 0, 0, 1),
    ],
    ids=["it is heard of", "it is about to take its snapshot"],
)
def test_reader_that_has_seen_more_events_than_the_coordinator_knows_is_refused(
    speaks: Callable[[SourceCoordinator], object],
) -> None:
    """The coordinator was restored from old progress and could assign the split of the reader
    again. The reader is refused before a checkpoint can complete."""
    before = new(ThreeSplits(), encode=str.encode, decode=bytes.decode)
    before.heard(0, 0, 0)
    before.snapshot(1)
    progress = before.progress()
    before.heard(0, 0, 1)
    before.checkpoint_aborted(1)
    assert before.events(0, 0, 0) == (b"a",)
    after = new(ThreeSplits(), encode=str.encode, decode=bytes.decode, progress=progress)
    with pytest.raises(UnavailableError, match=r"received 1 events.*knows only 0"):
        speaks(after)
    after.heard(0, 0, 1, position=0)
