"""Frames are received completely, by sockets and by shared memory."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import struct
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from flinkray.streaming.network import NetworkSettings
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
from flinkray.streaming.network.shared_memory import SHARED_FROM, MappedRegions, Offer, OwnedRegions
from flinkray.streaming.network.wire import PlainWire
from flinkray.streaming.records.elements import END_OF_INPUT, Columns
from tests.streaming.network.networks import (
    PATIENCE,
    Writing,
    in_background,
    network,
    numbers,
    read,
)


class _Bytes:
    """A source that gives its bytes in pieces of the sizes that it is told."""

    is_empty = False

    def __init__(self, data: bytes, pieces: random.Random | None = None) -> None:
        self._data = data
        self._pieces = pieces
        self.memory: list[tuple[int, int]] = []
        """Begin and end of what was filled."""

    def try_recv_into(self, view: memoryview) -> int:
        if self._pieces is not None and self._pieces.random() < 0.3:
            return -1
        count = min(len(view), len(self._data))
        if self._pieces is not None and count:
            count = self._pieces.randint(1, count)
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        address = pa.py_buffer(view).address
        self.memory.append((address, address + count))
        return count


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
            while (came := reader.next()) is None:
                assert not reader.has_ended
            kind, header, received, _ = came
            assert (kind, header) == (DATA, (number, len(body))), seed
            assert (received.to_pybytes() if received else b"")[: len(body)] == body, seed
        while not reader.has_ended:
            assert reader.next() is None


def copied_bytes(body: pa.Buffer, size: int, source: _Bytes) -> int:
    """Bytes of a body that are not where the source has put them."""
    begin: int = body.address
    end = begin + size
    return size - sum(max(0, min(end, until) - max(begin, since)) for since, until in source.memory)


@pytest.mark.parametrize("size", [COPIED_BELOW, 10_000, ALONE_FROM])
def test_small_frame_bodies_are_not_copied_after_receiving(size: int) -> None:
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


def test_large_frame_bodies_received_one_after_the_other_are_hardly_copied() -> None:
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


def test_large_frame_body_is_received_completely_without_waiting_for_the_rest() -> None:
    ours, theirs = socket.socketpair()
    wire, data = PlainWire(ours), os.urandom(2_000_000)
    sending = threading.Thread(target=lambda: PlainWire(theirs).send([frame(1, data)]))
    sending.start()
    reader, looks = FrameReader(wire), 0
    while (came := reader.next()) is None:
        select.select([ours], [], [], PATIENCE)
        looks += 1
    sending.join(PATIENCE)
    assert came[2] is not None
    assert came[2].to_pybytes() == data
    assert looks > 1
    theirs.close()
    while not reader.has_ended:
        assert reader.next() is None
    wire.close()


def test_frame_prefix_has_the_lengths_of_header_and_body() -> None:
    packed = head(RELEASE, (1, None))
    body, header, magic, kind, pad = struct.unpack_from("<QIHBB", packed)
    assert (body, header, magic, kind) == (0, len(packed) - 16, MAGIC, RELEASE)
    assert len(packed) % 8 == 0
    assert pad < 8


MIB = 2**20


class _Pair:
    """Both sides, without a connection between them."""

    def __init__(self, budget: int) -> None:
        self.offers: list[Offer] = []
        self.dropped: list[int] = []
        self.owned = OwnedRegions(budget, self.offers.append, self.dropped.extend)
        self.mapped = MappedRegions()

    def exchange(self) -> None:
        """What the two tell each other."""
        while self.offers:
            offer = self.offers.pop()
            self.owned.answered(offer[0], self.mapped.map(offer))
        returned = self.mapped.returned
        self.owned.returned([returned.popleft() for _ in range(len(returned))])
        self.mapped.drop(self.dropped)

    def put(self, array: npt.NDArray[Any]) -> pa.Buffer | None:
        data = array.data.cast("B")
        region = self.owned.put([data[:8], data[8:]], len(data))
        return None if region is None else self.mapped.body(region, len(data))

    def close(self) -> None:
        self.owned.close()
        self.mapped.close()


def values(body: pa.Buffer | None) -> list[int]:
    assert body is not None
    return np.frombuffer(body, np.int64).tolist()  # type: ignore[no-any-return]


def memory_files() -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += "flinkray-channel" in os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # that of the listing
    return count


def test_shared_memory_region_is_reused_once_nothing_reads_it() -> None:
    pair = _Pair(MIB)
    first, second = np.arange(100_000), np.arange(100_000, 200_000)
    assert pair.put(first) is None
    pair.exchange()
    body = pair.put(first)
    assert values(body) == first.tolist()
    assert body is not None
    assert body.address % 64 == 0
    part = body.slice(80, 8)
    del body
    pair.exchange()
    assert pair.put(second) is None, "part of it is being read, and there is no other"
    assert values(part) == [10]
    del part
    pair.exchange()
    assert values(pair.put(second)) == second.tolist()
    pair.close()


def test_unused_shared_memory_regions_are_replaced_by_larger_ones_within_the_budget() -> None:
    pair = _Pair(2 * MIB)
    before = memory_files()
    kept = []
    assert pair.put(np.arange(MIB // 8)) is None
    pair.exchange()
    for _ in range(2):
        kept.append(pair.put(np.arange(MIB // 8)))
    assert memory_files() > before
    assert pair.put(np.arange(MIB // 8)) is None
    pair.exchange()
    kept.clear()
    pair.exchange()
    assert pair.put(np.arange(MIB // 4)) is None
    pair.exchange()
    assert pair.dropped
    assert values(pair.put(np.arange(MIB // 4)))[-1] == MIB // 4 - 1
    assert pair.put(np.arange(MIB)) is None, "larger than the budget"
    pair.close()
    assert memory_files() == before


def test_process_that_cannot_map_shared_memory_gets_data_by_the_socket() -> None:
    pair = _Pair(64 * MIB)
    pair.put(np.arange(100_000))
    number, process, file, capacity, count, token = pair.offers.pop()
    for wrong in (
        (number, 2**22 + 1, file, capacity, count, token),
        (number, process, 1, capacity, count, token),
        (number, process, file, capacity, count, bytes(64)),
    ):
        assert not pair.mapped.map(wrong)
    pair.owned.answered(number, False)
    assert pair.put(np.arange(100_000)) is None
    assert not pair.offers
    pair.close()


def test_process_without_file_descriptors_sends_everything_by_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", exhausted)
    pair = _Pair(64 * MIB)
    assert pair.put(np.arange(100_000)) is None
    assert not pair.offers
    pair.close()


def test_frame_body_at_a_place_outside_of_its_shared_memory_region_is_refused() -> None:
    pair = _Pair(64 * MIB)
    pair.put(np.arange(100_000))
    pair.exchange()
    with pytest.raises(ValueError, match="in a region of"):
        pair.mapped.body(0, 2 * MIB)
    with pytest.raises(ValueError, match="in a region of"):
        pair.mapped.body(7, 8)
    with pytest.raises(KeyError):
        pair.mapped.body(2**20, 8)
    pair.close()


@pytest.mark.parametrize("budget", [0, MIB, 64 * MIB])
def test_batches_in_shared_memory_that_the_consumer_keeps_are_not_overwritten(budget: int) -> None:
    settings = NetworkSettings(shared_memory=budget)
    with network() as make:
        producer, consumer = make("producer", settings=settings), make("consumer")
        writing = Writing(producer.create_partition("p", "Source", 1, buffer_timeout=0))
        counts = [20_000, 100_000, 40_000, 300_000] * 15

        def write() -> None:
            for number, count in enumerate(counts):
                writing.put(numbers(count, number))
            writing.put(END_OF_INPUT)

        join = in_background(write)
        batches = read(consumer, producer).rest()
        join()
        for number, (batch, count) in enumerate(zip(batches, counts, strict=True)):
            assert isinstance(batch, Columns)
            expected = pa.array(np.arange(number, number + count))
            assert batch.batch.column(0).equals(expected)


def test_only_large_batches_are_sent_by_shared_memory() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        maps: set[str] = set()
        for _ in range(100):  # the first go by the socket, while the memory is being mapped
            partition.subpartitions[0].put(numbers(SHARED_FROM // 4))
            _, element = reading.next()
            assert isinstance(element, Columns)
            maps.add(_mapping_of(element.batch.column(0).buffers()[1].address))
            if "flinkray-channel" in "".join(maps):
                break
        assert "flinkray-channel" in "".join(maps)
        partition.subpartitions[0].put(numbers(100))
        _, element = reading.next()
        assert isinstance(element, Columns)
        assert "flinkray" not in _mapping_of(element.batch.column(0).buffers()[1].address)


def _mapping_of(address: int) -> str:
    """The line of this process's memory map that an address is in."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line
    raise AssertionError(f"no memory at {address:#x}")
