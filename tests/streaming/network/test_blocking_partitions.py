"""Results of batch jobs lie on the disk until they are released."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flinkray.streaming.network import NetworkSettings, PartitionReleasedError, ProducerLostError
from flinkray.streaming.records.elements import END_OF_INPUT, Block, Columns
from tests.streaming.network.networks import PATIENCE, network, numbers, read


def open_files(folder: Path) -> list[str]:
    """Those of this process in that folder, whether they have a name or not."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # that of the listing
    return [link for link in links if link.startswith(f"{folder}/")]


@pytest.mark.parametrize("is_local", [True, False])
def test_blocking_result_is_readable_only_when_complete_and_several_times(
    is_local: bool, tmp_path: Path
) -> None:
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer = make("producer", settings=settings)
        consumer = producer if is_local else make("consumer", settings=settings)
        partition = producer.create_partition("p", "Source", 2, is_blocking=True)
        early = read(consumer, producer)
        for first in range(0, 5_000, 1000):
            assert partition.has_room()
            for subpartition in partition.subpartitions:
                subpartition.put(Block([first]))
                subpartition.put(numbers(1000, first))
        assert early.gate.poll() is None
        assert partition.metrics().queued_bytes == 0
        for subpartition in partition.subpartitions:
            subpartition.put(END_OF_INPUT)
        written = partition.metrics()
        assert written.records == 2 * 5_005, "before anybody has read it"
        for reading in (early, read(consumer, producer), read(consumer, producer, "p", 1)):
            elements = reading.rest_of_records()
            columns = [element for element in elements if isinstance(element, Columns)]
            assert [batch.batch.column(0)[0].as_py() for batch in columns] == [
                0, 1000, 2000, 3000, 4000,
            ]  # fmt: skip
            assert sum(map(len, elements)) == 5_005
        assert partition.metrics() == written, "however often it was read"
        consumed = threading.Event()
        partition.on_consumed(consumed.set)
        assert consumed.wait(PATIENCE)


def test_blocking_result_can_be_read_again_after_its_consumer_is_lost(tmp_path: Path) -> None:
    """EX-14."""
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer, consumer = make("producer", settings=settings), make("consumer")
        partition = producer.create_partition("p", "Source", 1, is_blocking=True)
        for first in range(0, 100_000, 1000):
            partition.subpartitions[0].put(numbers(1000, first))
        partition.subpartitions[0].put(END_OF_INPUT)
        lost = read(consumer, producer)
        lost.next()
        consumer.close()
        elements = read(make("another"), producer).rest_of_records()
        assert sum(map(len, elements)) == 100_000
        assert partition.failure is None


def test_released_blocking_result_frees_its_file_and_fails_its_readers(tmp_path: Path) -> None:
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer, consumer = make("producer", settings=settings), make("consumer")
        partition = producer.create_partition("p", "Source", 1, is_blocking=True)
        assert len(open_files(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == []
        for first in range(0, 3_000_000, 100_000):
            partition.subpartitions[0].put(numbers(100_000, first))
        partition.subpartitions[0].put(END_OF_INPUT)
        reading = read(consumer, producer)
        reading.next()
        producer.release_partition(partition)
        with pytest.raises(ProducerLostError, match="released"):
            reading.rest()
        assert open_files(tmp_path) == []  # what was under way has been sent
        with pytest.raises(PartitionReleasedError):
            partition.has_room()
