"""What comes over a socket: batches in place, and refusal of what is not of the protocol."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading

import pyarrow as pa
import pytest

from flinkray.streaming.network.connection import ALONE_FROM, COPIED_BELOW, SLAB, FrameReader
from flinkray.streaming.network.errors import WireFormatError
from flinkray.streaming.network.frames import (
    DATA,
    MAGIC,
    MAX_BODY,
    MAX_HEADER,
    PREFIX,
    RELEASE,
    head,
    padding,
)
from flinkray.streaming.network.wire import PlainWire
from tests.streaming.network.networks import PATIENCE, network, numbers, read


class _Bytes:
    """A source that gives its bytes in pieces of the sizes that it is told."""

    def __init__(self, data: bytes, pieces: random.Random | None = None) -> None:
        self._data = data
        self._pieces = pieces
        self.memory: list[tuple[int, int]] = []
        """Begin and end of what was filled."""

    def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data))
        if self._pieces is not None and count:
            count = self._pieces.randint(1, count)
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        address = pa.py_buffer(view).address
        self.memory.append((address, address + count))
        return count

    def recv_exactly(self, view: memoryview) -> bool:
        done = 0
        while done < len(view):
            received = self.recv_into(view[done:])
            if received == 0:
                return False
            done += received
        return True


def frame(number: int, body: bytes) -> bytes:
    pad = padding(len(body))
    return head(DATA, (number, len(body)), len(body) + len(pad)) + body + pad


def test_frames_are_read_completely_however_the_bytes_are_fragmented() -> None:
    for seed in range(20):
        pieces = random.Random(seed)
        sizes = [pieces.choice([0, 1, 100, 5_000, 20_000, 70_000, 300_000]) for _ in range(40)]
        bodies = [os.urandom(size) for size in sizes]
        data = b"".join(frame(number, body) for number, body in enumerate(bodies))
        reader = FrameReader(_Bytes(data, pieces))
        for number, body in enumerate(bodies):
            came = reader.next()
            assert came is not None
            kind, header, received, _ = came
            assert (kind, header) == (DATA, (number, len(body))), seed
            assert (received.to_pybytes() if received else b"")[: len(body)] == body, seed
        assert reader.next() is None


def copied_bytes(body: pa.Buffer, size: int, source: _Bytes) -> int:
    """Bytes of a body that are not where the source has put them."""
    begin: int = body.address
    end = begin + size
    return size - sum(max(0, min(end, until) - max(begin, since)) for since, until in source.memory)


@pytest.mark.parametrize("size", [COPIED_BELOW, 10_000, ALONE_FROM])
def test_small_bodies_are_not_copied_after_receiving(size: int) -> None:
    """Except for bodies at the end of a slab."""
    source = _Bytes(b"".join(frame(number, bytes(size)) for number in range(20)))
    reader = FrameReader(source)
    moved = 0
    while (came := reader.next()) is not None:
        body = came[2]
        assert body is not None
        assert body.address % 8 == 0
        moved += copied_bytes(body, size, source) > 0
    assert moved <= 20 * size // (SLAB - size)


def test_large_bodies_received_one_after_the_other_are_hardly_copied() -> None:
    size = 1_000_000
    source = _Bytes(b"".join(frame(number, bytes(size)) for number in range(10)))
    reader = FrameReader(source)
    copied = []
    while (came := reader.next()) is not None:
        body = came[2]
        assert body is not None
        assert body.address % 8 == 0
        copied.append(copied_bytes(body, size, source))
        source.memory.clear()
    assert copied[0] < SLAB
    assert max(copied[1:]) < 512


def test_received_arrow_batch_uses_the_receive_memory() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        partition.subpartitions[0].put(numbers(100_000))
        _, element = reading.next()
        column = element.batch.column(0)  # type: ignore[union-attr]
        values = column.buffers()[1]
        # The column is a part of a larger buffer, the body of the frame, and no memory of its own.
        assert values.parent is not None
        assert values.parent.size >= 800_000
        assert values.parent.address <= values.address
        assert values.address + values.size <= values.parent.address + values.parent.size
        assert column[99_999].as_py() == 99_999


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(64),
    "unknown kind": PREFIX.pack(0, 8, MAGIC, 99, 0) + bytes(8),
    "huge body": PREFIX.pack(MAX_BODY + 8, 8, MAGIC, DATA, 0) + bytes(8),
    "huge header": PREFIX.pack(0, MAX_HEADER + 8, MAGIC, DATA, 0) + bytes(8),
    "no header": PREFIX.pack(0, 0, MAGIC, DATA, 0) + bytes(8),
    "header that is no msgpack": PREFIX.pack(0, 8, MAGIC, DATA, 0) + b"\xc1" * 8,
    "header that is no list": PREFIX.pack(0, 8, MAGIC, DATA, 7) + b"\x01" + bytes(7),
    "body that is not a multiple of 8": PREFIX.pack(3, 8, MAGIC, DATA, 0) + bytes(8),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(WireFormatError):
        FrameReader(_Bytes(data)).next()


@pytest.mark.parametrize("count", [1, PREFIX.size, PREFIX.size + 3, 2_000])
def test_incomplete_last_frame_is_not_returned(count: int) -> None:
    assert FrameReader(_Bytes(frame(1, bytes(50_000))[:count])).next() is None


def test_large_body_is_received_completely() -> None:
    ours, theirs = socket.socketpair()
    data = os.urandom(2_000_000)
    sending = threading.Thread(target=lambda: PlainWire(theirs).send([data]))
    sending.start()
    received = bytearray(len(data))
    assert PlainWire(ours).recv_exactly(memoryview(received))
    sending.join(PATIENCE)
    assert received == data
    theirs.close()
    assert not PlainWire(ours).recv_exactly(memoryview(received))
    ours.close()


def test_frame_prefix_has_the_lengths_of_header_and_body() -> None:
    packed = head(RELEASE, (1, None))
    body, header, magic, kind, pad = struct.unpack_from("<QIHBB", packed)
    assert (body, header, magic, kind) == (0, len(packed) - 16, MAGIC, RELEASE)
    assert len(packed) % 8 == 0
    assert pad < 8
