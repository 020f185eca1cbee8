"""A source's coordinator: what readers are told, by attempts, and across checkpoints."""

from __future__ import annotations

from typing import Any

from flinkray.core.clock import Clock
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
from flinkray.testing.manual_clock import ManualClock


class Noting(FixedSplitsEnumerator[str]):
    """Tells what it is asked."""

    def __init__(self, context: EnumeratorContext[str], notes: list[Any]) -> None:
        super().__init__(context, ["a", "b", "c"])
        self.notes = notes

    def add_reader(self, subtask: int) -> None:
        self.notes.append(("reader", subtask))

    def add_splits_back(self, splits: Any, subtask: int) -> None:
        self.notes.append(("back", list(splits), subtask))
        super().add_splits_back(splits, subtask)

    def next_discovery_time(self) -> float | None:
        return 7.0

    def discover(self) -> None:
        self.context.assign_split("found", 1)

    def close(self) -> None:
        self.notes.append("closed")


class ThreeSplits(Source[str]):
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


def new(source: ThreeSplits, **options: Any) -> SourceCoordinator:
    return SourceCoordinator(source, 2, ManualClock(), **options)


def test_each_request_is_answered_once() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    coordinator.heard(0, 0, 1)
    assert coordinator.events(0, 0, 0) == ("a",)
    coordinator.heard(0, 0, 4)
    assert coordinator.events(0, 0, 1) == ("b", "c", NO_MORE_SPLITS)
    assert coordinator.events(0, 0, 4) == ()


def test_what_an_attempt_was_given_goes_back_when_there_is_another() -> None:
    source = ThreeSplits()
    coordinator = new(source)
    coordinator.heard(1, 0, 2)
    coordinator.heard(1, 1, 0)
    assert source.notes == [("reader", 1), ("back", ["a", "b"], 1), ("reader", 1)]
    coordinator.heard(1, 0, 5)  # last words
    assert coordinator.events(1, 0, 0) is None
    coordinator.heard(1, 1, 3)
    assert coordinator.events(1, 1, 0) == ("c", "a", "b")


def test_splits_are_encoded_for_readers_and_go_back_as_they_were() -> None:
    source = ThreeSplits()
    coordinator = new(source, encode=str.encode)
    coordinator.heard(0, 0, 1)
    assert coordinator.events(0, 0, 0) == (b"a",)
    coordinator.heard(0, 1, 0)
    assert ("back", ["a"], 0) in source.notes


def test_a_reader_may_be_given_something_before_it_is_heard_of() -> None:
    coordinator = new(ThreeSplits())
    assert coordinator.next_discovery_time() == 7.0
    coordinator.discover()
    assert coordinator.events(1, 0, 0) is None
    coordinator.heard(1, 0, 0)
    assert coordinator.events(1, 0, 0) == ("found",)


def test_a_checkpoint_has_what_was_not_assigned_before_it() -> None:
    coordinator = new(ThreeSplits())
    coordinator.heard(0, 0, 1)
    state = coordinator.snapshot(1)
    coordinator.heard(0, 0, 2)
    restored = new(ThreeSplits(), checkpoint=state)
    restored.heard(0, 0, 3)
    assert restored.events(0, 0, 0) == ("b", "c", NO_MORE_SPLITS)


def test_closing_closes_the_enumerator() -> None:
    source = ThreeSplits()
    new(source).close()
    assert source.notes == ["closed"]
