"""Who is given which split, when splits are published while readers ask."""

from __future__ import annotations

from typing import Any

from flinkray.streaming.sources.spark import LOOK_INTERVAL, PublishedSplitsEnumerator
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers


class Publication(PublishedSplitsEnumerator[tuple[int]]):
    """Splits that a test publishes by hand."""

    def __init__(self, readers: Readers, clock: ManualClock) -> None:
        context: Any = readers
        super().__init__(context, clock)
        self.published: list[list[tuple[int]]] = []
        self.is_over = False

    def find_splits(self) -> list[tuple[int]] | None:
        if self.published:
            return self.published.pop(0)
        return None if self.is_over else []

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return list(self._remaining)

    def restore(self, checkpoint: Any) -> None:
        self._remaining = list(checkpoint)


def test_readers_get_published_splits_in_the_order_in_which_they_asked() -> None:
    readers, clock = Readers(3), ManualClock()
    enumerator = Publication(readers, clock)
    for subtask in (2, 0, 1, 0):
        enumerator.handle_split_request(subtask)
    assert readers.assigned == {}
    enumerator.published += [[(1,), (2,)], [(3,)]]
    enumerator.discover()
    assert readers.assigned == {2: [(1,)], 0: [(2,)], 1: [(3,)]}
    assert readers.done == []


def test_discovery_of_splits_is_scheduled_only_while_a_reader_waits() -> None:
    readers, clock = Readers(1), ManualClock()
    enumerator = Publication(readers, clock)
    assert enumerator.next_discovery_time() is None
    enumerator.handle_split_request(0)
    assert enumerator.next_discovery_time() == clock.time() + LOOK_INTERVAL
    clock.advance(LOOK_INTERVAL)
    enumerator.discover()
    assert enumerator.next_discovery_time() == clock.time() + LOOK_INTERVAL
    enumerator.published.append([(1,)])
    enumerator.discover()
    assert enumerator.next_discovery_time() is None


def test_returned_splits_are_assigned_before_others_and_in_order() -> None:
    readers, clock = Readers(3), ManualClock()
    enumerator = Publication(readers, clock)
    enumerator.published.append([(1,), (2,), (3,), (4,)])
    for _ in range(3):
        enumerator.handle_split_request(0)
    enumerator.add_splits_back([(3,), (1,)], 0)
    assert enumerator.snapshot_state(1) == [(1,), (3,), (4,)]
    for _ in range(3):
        enumerator.handle_split_request(1)
    enumerator.handle_split_request(2)
    assert readers.assigned[1] == [(1,), (3,), (4,)]
    enumerator.add_splits_back([(2,)], 0)
    assert readers.assigned[2] == [(2,)]


def test_each_reader_is_told_to_end_after_all_splits_are_assigned() -> None:
    readers, clock = Readers(2), ManualClock()
    enumerator = Publication(readers, clock)
    enumerator.published.append([(1,), (2,)])
    enumerator.is_over = True
    for subtask in (0, 1, 0, 1):
        enumerator.handle_split_request(subtask)
    assert readers.assigned == {0: [(1,)], 1: [(2,)]}
    assert readers.done == [0, 1]
    assert enumerator.next_discovery_time() is None
