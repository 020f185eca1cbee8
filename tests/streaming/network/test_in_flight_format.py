"""Data in flight is stored as it was sent, and read alone: without the channel that it was in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.checkpoint.errors import (
    CheckpointStorageError,
    CorruptCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.state.errors import StateMigrationError
from flinkray.streaming.errors import UnpicklableRecordsError
from flinkray.streaming.network import decode_elements, encode_elements
from flinkray.streaming.network.element_codec import ElementDecoder, ElementEncoder
from flinkray.streaming.records.elements import IDLE, Block, Columns, Element, Origin, Watermark
from flinkray.streaming.records.in_flight import EncodedElements, InFlight
from flinkray.streaming.records.row import Row
from tests.streaming.network.networks import numbers
from tests.streaming.network.test_channels import STORY, shown

STORED = bytes.fromhex(
    "666c696e6b72617920696e2d666c696768740a018ee2ab7d400000000000000013000000000000009195032a"
    "10c392aa536f7572636520312f310700000000008005951f000000000000005d94288c0161944b0186948c01"
    "62944b028694655d9428680168036586942e0000000000000a00000000000000140000000000000000000000"
    "000000000400000000000000919205140000000000000000000000000400000000000000919206c300000000"
    "280000000000000007000000000000009195042700c2c0008005951c000000000000005d948c016e94615d94"
    "285d944b01615d944b0261654e87944e86942e0030010000000000001b0000000000000092930000cc809701"
    "00cca010c3c292aa536f7572636520312f31090000000000ffffffff780000001000000000000a000c000600"
    "050008000a000000000104000c00000008000800000004000800000004000000010000001400000010001400"
    "0800060007000c00000010001000000000000102100000001c0000000400000000000000010000006e000000"
    "08000c0008000700080000000000000140000000ffffffff8800000014000000000000000c00160006000500"
    "08000c000c0000000003040018000000100000000000000000000a0018000c00040008000a0000003c000000"
    "1000000002000000000000000000000002000000000000000000000000000000000000000000000000000000"
    "1000000000000000000000000100000002000000000000000000000000000000010000000000000002000000"
    "000000001e000000000000002800000000000000"
)
"""What version 1 of the format has for SAMPLE."""

SAMPLE: list[Element] = [
    Block([("a", 1), ("b", 2)], [10, 20], ["a", "b"], Origin("Source 1/1", 7)),
    Watermark(20),
    IDLE,
    Block([Row(n=1), Row(n=2)]),
    Columns(pa.record_batch({"n": [1, 2]}), np.array([30, 40]), Origin("Source 1/1", 9)),
]


class Channel:
    """One that elements are sent in: what was sent, as the sender and as the receiver has it."""

    def __init__(self) -> None:
        self._encoder = ElementEncoder()
        self._known: set[int] = set()
        self._decoder = ElementDecoder()
        self._buffers: list[tuple[Any, Any]] = []

    def send(self, *elements: Element) -> EncodedElements:
        encoded = self._encoder.encode(elements, self._known)
        self._buffers.append((encoded.descriptions, encoded.parts))
        return EncodedElements(encoded.descriptions, encoded.parts, self._encoder)

    def come(self) -> EncodedElements:
        """The next buffer, not decoded yet."""
        descriptions, parts = self._buffers.pop(0)
        return EncodedElements(descriptions, (pa.py_buffer(b"".join(parts)),), self._decoder)

    def take(self) -> None:
        """The next buffer: decoded, and gone."""
        descriptions, parts = self._buffers.pop(0)
        self._decoder.decode(descriptions, pa.py_buffer(b"".join(parts)))


def there_and_back(*elements: InFlight) -> list[object]:
    return [shown(element) for element in decode_elements(encode_elements(elements))]


def test_elements_in_flight_of_every_kind_are_read_back() -> None:
    assert there_and_back(*STORY) == [shown(element) for element in STORY]
    assert there_and_back() == []


def test_stored_buffers_are_read_with_schemas_sent_in_earlier_buffers() -> None:
    """For buffers stored by the sender and by the receiver."""
    channel = Channel()
    channel.send(numbers(3))
    of_sender = [
        channel.send(Block([1]), numbers(2)),
        channel.send(Columns(pa.record_batch({"s": ["x"]})), numbers(1)),
        channel.send(Columns(pa.record_batch({"s": ["y"]})), Watermark(1)),
    ]
    channel.take()
    of_receiver = [channel.come() for _ in range(3)]
    wanted = [
        shown(Block([1])),
        shown(numbers(2)),
        shown(Columns(pa.record_batch({"s": ["x"]}))),
        shown(numbers(1)),
        shown(Columns(pa.record_batch({"s": ["y"]}))),
        Watermark(1),
    ]
    assert there_and_back(*of_sender) == wanted
    assert there_and_back(*of_receiver) == wanted
    schema = numbers(1).batch.schema.serialize().to_pybytes()
    assert encode_elements(of_sender).count(schema) == 1


def test_elements_in_flight_of_several_channels_keep_their_own_schemas() -> None:
    one, other = Channel(), Channel()
    one.send(numbers(1))
    texts = Columns(pa.record_batch({"s": ["x"]}))
    other.send(texts)
    elements: list[InFlight] = [one.send(numbers(2)), texts, other.send(texts), numbers(3)]
    elements.append(one.send(numbers(4)))
    wanted = [shown(it) for it in (numbers(2), texts, texts, numbers(3), numbers(4))]
    assert there_and_back(*elements) == wanted


def test_each_batch_in_flight_is_stored_with_its_dictionary() -> None:
    channel = Channel()
    batches = [
        Columns(pa.record_batch({"d": pa.array(values).dictionary_encode()}))
        for values in (["a", "b"], ["c"])
    ]
    sent = [channel.send(batch) for batch in batches]
    assert there_and_back(sent[1]) == [shown(batches[1])]
    assert there_and_back(*sent) == [shown(batch) for batch in batches]


def test_data_in_flight_of_format_version_1_is_read() -> None:
    """If this test fails, the format has changed: raise its version, and read both versions."""
    assert [shown(element) for element in decode_elements(STORED)] == [shown(e) for e in SAMPLE]
    assert encode_elements(SAMPLE)[:20] == STORED[:20]


@given(st.data())
def test_truncated_or_changed_bytes_of_data_in_flight_are_refused(data: st.DataObject) -> None:
    stored = bytearray(encode_elements(SAMPLE))
    if data.draw(st.booleans(), label="cut short"):
        del stored[data.draw(st.integers(0, len(stored) - 1), label="length") :]
    else:
        place = data.draw(st.integers(0, len(stored) - 1), label="place")
        stored[place] ^= data.draw(st.integers(1, 255), label="change")
    with pytest.raises(CheckpointStorageError, match="/chk-1/ab12"):
        decode_elements(bytes(stored), "/chk-1/ab12")


def test_foreign_newer_and_damaged_files_of_in_flight_data_raise_different_errors() -> None:
    stored = encode_elements(SAMPLE)
    with pytest.raises(UnknownCheckpointFormatError, match="no such file"):
        decode_elements(b"flinkray operator state\n")
    with pytest.raises(UnknownCheckpointFormatError, match="format version 2"):
        decode_elements(stored.replace(b"\n\x01", b"\n\x02", 1))
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        decode_elements(stored[:-1])


class Renamed:
    """A class of the user's."""


def test_records_of_a_missing_class_are_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = encode_elements([Block([Renamed()])])
    monkeypatch.delitem(globals(), "Renamed")
    with pytest.raises(StateMigrationError, match=r"in a handle.*'Renamed'.*bring back"):
        decode_elements(stored)


def test_unpicklable_record_in_flight_raises_unpicklable_records_error() -> None:
    with pytest.raises(UnpicklableRecordsError):
        encode_elements([Block([(number for number in range(3))])])
