"""Results of functions: copies, batches and sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.streaming.channels import MemoryChannel, MergingWriter
from flinkray.streaming.operators.basic import FlatMapOperator
from flinkray.streaming.records.elements import Block, Columns, Watermark
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.sizes import bytes_of
from flinkray.testing.operator_harness import OperatorHarness

PLAIN: list[list[Any]] = [
    ["a", "b", 1, None, 2.5],
    [(1, "a"), (2, "b"), ("c", 3), (None, None)],
    [(1, "a", None), (2, "b", None), ()],
]
OPEN: list[list[Any]] = [
    [[1], [2], {3}],
    [([1], "a"), ([2], "b"), ("c", [3]), ("d", [4]), ([5], [6]), (None, [7]), ([8], None)],
    [(1, "a", [2]), ([1], "a", 2), ([1], [2], [3])],
]


def put_out(given: list[Any]) -> list[Any]:
    h = OperatorHarness(FlatMapOperator(lambda value: given))
    h.process(0)
    found: list[Any] = h.values()
    assert found == given
    return found


@pytest.mark.parametrize("given", PLAIN)
def test_immutable_results_of_a_function_are_not_copied(given: list[Any]) -> None:
    assert [mine is its for mine, its in zip(given, put_out(given), strict=True)] == [
        True for _ in given
    ]


@pytest.mark.parametrize("given", OPEN)
@pytest.mark.parametrize("before", PLAIN)
def test_mutable_results_among_immutable_results_are_copied(
    before: list[Any], given: list[Any]
) -> None:
    for one in given:
        mixed = [*before, one, before[0], one]
        found = put_out(mixed)
        assert [mine is its for mine, its in zip(mixed, found, strict=True)] == [
            *(True for _ in before),
            False,
            True,
            False,
        ]


@pytest.mark.parametrize("value", [7, 2.5, object()])
def test_return_value_that_is_no_list_of_results_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match="which is no list or iterator of results"):
        put_out(value)


def test_type_error_raised_by_a_function_is_raised_unchanged() -> None:
    def fails(value: Any) -> Any:
        yield 1
        raise TypeError("in the function")

    def fails_at_one(value: Any) -> Any:
        if value:
            raise TypeError("in the function")

    with pytest.raises(Exception, match="in the function"):
        OperatorHarness(FlatMapOperator(fails_at_one)).process(0, 1)
    h = OperatorHarness(FlatMapOperator(fails))
    with pytest.raises(Exception, match="in the function"):
        h.process(0)
    with pytest.raises(Exception, match="in the function"):
        OperatorHarness(FlatMapOperator(lambda value: Sized())).process(0)


class Sized:
    """Has elements by their places, which is enough for an iterator."""

    def __getitem__(self, place: int) -> Any:
        raise TypeError("in the function")


@pytest.mark.parametrize("at", [None, [7]])
def test_many_results_for_one_record_are_emitted_in_several_batches(
    at: list[int] | None,
) -> None:
    h = OperatorHarness(FlatMapOperator(lambda value: range(20_000)))
    h.process(0, at=at)
    time = None if at is None else 7
    assert h.records() == [(number, time) for number in range(20_000)]
    batches = h.batches()
    assert len(batches) > 1
    assert {batch.timestamps is None for batch in batches} == {at is None}


MEGABYTE = 1 << 20
TEXT = "x" * MEGABYTE


@dataclasses.dataclass
class Holder:
    data: Any


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        TEXT.encode(),
        bytearray(MEGABYTE),
        np.zeros(MEGABYTE // 8),
        pa.array(np.zeros(MEGABYTE // 8)),
        (1, TEXT),
        [TEXT],
        {"a": [TEXT]},
        Row(1, (TEXT,)),
        Holder([TEXT]),
        list(range(MEGABYTE // 40)),
        ["x" * 100] * (MEGABYTE // 157),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("records", [1, 3, 1000])
def test_computed_size_of_large_records_is_about_their_memory(value: Any, records: int) -> None:
    size = bytes_of(Block([value] * records)) / records
    assert 0.8 * MEGABYTE < size < 1.4 * MEGABYTE


def test_size_of_small_records_is_estimated_and_size_of_columns_is_exact() -> None:
    assert bytes_of(Block([])) == 0
    assert bytes_of(Block(range(1000))) == 32_000
    assert 32_000 <= bytes_of(Block([(n,) for n in range(1000)])) < 200_000
    assert bytes_of(Columns(pa.record_batch({"a": np.zeros(1000)}))) == 8_000
    half = Columns(pa.record_batch({"a": np.zeros(1000)})).part(500, 1000)
    assert bytes_of(half) == 4_000


def test_size_of_a_value_that_contains_itself_is_computed() -> None:
    value: list[Any] = [TEXT]
    value.append(value)
    assert bytes_of(Block([value])) >= MEGABYTE


def test_channel_has_no_room_when_it_has_too_many_elements_or_bytes() -> None:
    channel = MemoryChannel(3, 2 * MEGABYTE)
    channel.put(Block([TEXT]))
    channel.put(Watermark(1))
    assert channel.has_room()
    channel.put(Watermark(2))
    assert not channel.has_room()
    channel.take()
    assert channel.has_room()
    channel.put(Block([TEXT] * 2))
    channel.take()
    channel.take()
    assert not channel.has_room()  # one element, of two megabytes
    channel.take()
    assert channel.has_room()


def test_large_records_are_sent_without_waiting_for_a_batch() -> None:
    channels = [MemoryChannel(), MemoryChannel()]
    partitioner = RebalancePartitioner()
    partitioner.setup(2, 128, 0)
    writer = MergingWriter(channels, partitioner)
    writer.process_block(Block(["small", "small"]))
    writer.process_block(Block([TEXT, TEXT]))
    sent = [[len(element) for element in channel.elements] for channel in channels]  # type: ignore[arg-type]
    assert sent == [[1, 1], [1, 1]]
