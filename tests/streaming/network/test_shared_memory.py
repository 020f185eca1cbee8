"""Large bodies between processes of one node lie in memory that both have."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from flinkray.streaming.network import NetworkSettings
from flinkray.streaming.network.shared_memory import (
    SHARED_FROM,
    MappedRegions,
    Offer,
    OwnedRegions,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Columns
from tests.streaming.network.networks import Writing, in_background, network, numbers, read

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


def test_body_outside_of_its_shared_region_is_refused() -> None:
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
