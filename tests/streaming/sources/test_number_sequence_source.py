"""Sequences of integers."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream.connectors import NumberSequenceSource
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.source import END_OF_INPUT, Boundedness, ReaderContext
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import read, reader_of


@pytest.mark.parametrize("parallelism", [1, 3])
def test_number_sequence_is_divided_among_subtasks(parallelism: int) -> None:
    assert sorted(read(NumberSequenceSource(5, 20_000), parallelism)) == list(range(5, 20_001))


def test_restored_number_reader_continues_at_its_snapshot() -> None:
    context = ReaderContext(0, 1, ManualClock())
    first: Any = NumberSequenceSource(0, 99).create_reader(context)
    first.add_splits([Slice(0, 50), Slice(50, 100)])
    first.notify_no_more_splits()
    assert list(first.poll(30).values) == list(range(30))
    second: Any = NumberSequenceSource(0, 99).create_reader(context)
    second.add_splits(first.snapshot_state(1))
    second.notify_no_more_splits()
    values: list[int] = []
    while (polled := second.poll(40)) is not END_OF_INPUT:
        values += polled.values
    assert values == list(range(30, 100))


def test_number_sequence_is_read_in_blocks_of_the_requested_size() -> None:
    reader = reader_of(NumberSequenceSource(10, 99), Slice(0, 7), Slice(20, 22))
    found = [list(reader.poll(5).values) for _ in range(3)]
    assert found == [[10, 11, 12, 13, 14], [15, 16], [30, 31]]
    assert reader.poll(5) is END_OF_INPUT


def test_number_sequence_is_bounded_and_a_descending_sequence_is_refused() -> None:
    assert NumberSequenceSource(1, 1).get_boundedness() is Boundedness.BOUNDED
    assert read(NumberSequenceSource(1, 1)) == [1]
    with pytest.raises(ValueError, match="5 to 4"):
        NumberSequenceSource(5, 4)
