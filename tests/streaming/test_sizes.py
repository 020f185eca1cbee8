"""About how much memory records take, and channels that count it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.streaming.channels import MemoryChannel, MergingWriter
from flinkray.streaming.records.elements import Block, Columns, Watermark
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.sizes import bytes_of

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
