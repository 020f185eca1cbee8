"""Processes of a test: environments that are closed with it, and ends that are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    NetworkInputGate,
    ResultPartition,
)
from flinkray.streaming.network.frames import Part
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    Columns,
    Element,
    EndOfData,
    EndOfInput,
)

SECRET = b"s" * 32
PATIENCE = 30.0
"""Seconds after which a test that waits for another thread gives up."""


@contextmanager
def network() -> Iterator[Callable[..., NetworkEnvironment]]:
    """Makes environments on one node, unless they are told otherwise."""
    with ExitStack() as stack:

        def make(name: str, **arguments: Any) -> NetworkEnvironment:
            environment = NetworkEnvironment(name, SECRET, **{"node_id": "node", **arguments})
            stack.callback(environment.close)
            return environment

        yield make


class Reading:
    """A gate and its task: waits where there is nothing to read."""

    def __init__(self, gate: NetworkInputGate, *, request: bool = True) -> None:
        self.gate = gate
        self._woken = threading.Event()
        gate.listen(self._woken.set)
        if request:
            gate.request()

    def next(self) -> tuple[int, Element]:
        while (polled := self.gate.poll()) is None:
            assert self._woken.wait(PATIENCE), "nothing came"
            self._woken.clear()
        return polled

    def next_barrier(self) -> tuple[int, Barrier]:
        """One that overtakes what waits, which stays."""
        while (polled := self.gate.poll_overtaking()) is None:
            assert self._woken.wait(PATIENCE), "no barrier came"
            self._woken.clear()
        return polled

    def rest(self) -> list[Element]:
        """All elements up to the end of the last channel, without these ends."""
        elements: list[Element] = []
        while not self.gate.finished:
            channel, element = self.next()
            if isinstance(element, EndOfData):
                self.gate.end_data(channel)
            elif isinstance(element, EndOfInput):
                self.gate.end(channel)
            else:
                elements.append(element)
        return elements

    def rest_of_records(self) -> list[Block | Columns]:
        """As :meth:`rest`, where nothing but records comes."""
        batches = []
        for element in self.rest():
            assert isinstance(element, Block | Columns)
            batches.append(element)
        return batches


class Writing:
    """A partition and its task: waits where there is no room."""

    def __init__(self, partition: ResultPartition) -> None:
        self.partition = partition
        self._woken = threading.Event()
        partition.listen(self._woken.set)

    def wait_for_room(self) -> None:
        while not self.partition.has_room():
            assert self._woken.wait(PATIENCE), "there was never room"
            self._woken.clear()

    def put(self, element: Element, subpartition: int = 0) -> None:
        self.wait_for_room()
        self.partition.subpartitions[subpartition].put(element)


def read(
    environment: NetworkEnvironment,
    producer: NetworkEnvironment,
    partition_id: Any = "p",
    subpartition: int = 0,
    consumer: str = "Sink (1/1)",
) -> Reading:
    """A gate of one channel."""
    source = ChannelSource(partition_id, subpartition, producer.address)
    return Reading(environment.create_gate(consumer, [source]))


def numbers(count: int, first: int = 0) -> Columns:
    return Columns(pa.record_batch({"n": np.arange(first, first + count)}))


def in_background(action: Callable[[], None]) -> Callable[[], None]:
    """Run it in a thread; what is returned waits for the end, and raises what it raised."""
    executor = ThreadPoolExecutor(1)
    running = executor.submit(action)
    executor.shutdown(wait=False)
    return lambda: running.result(PATIENCE)


class SilentWire:
    """A wire that takes all, and brings nothing."""

    is_on_one_node = False
    is_empty = False

    def fileno(self) -> int:
        raise AssertionError("nothing is read from this wire")

    def try_recv_into(self, view: memoryview) -> int:
        return -1

    def send(self, parts: Sequence[Part]) -> None:
        """As good as sent."""

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        return []

    def shut_down(self) -> None:
        """There is nothing to be closed."""

    def close(self) -> None:
        """There is nothing to be closed."""
