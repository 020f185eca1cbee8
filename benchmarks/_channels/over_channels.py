"""flinkray's channels; ``main`` is the other process."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pyarrow as pa

from _channels.contender import Contender, Peer, tell
from flinkray.rpc.wire import codec
from flinkray.streaming.network import (
    ChannelSource,
    DataAddress,
    NetworkEnvironment,
    NetworkInputGate,
    ResultPartition,
    Signal,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Block, Columns, Element, EndOfInput

SECRET = b"benchmark".ljust(32)


class _Reader:
    """As a task reads: polls, and waits where there is nothing."""

    def __init__(self, gate: NetworkInputGate, signal: Signal) -> None:
        self.gate = gate
        self._woken = signal
        gate.listen(self._woken.set)
        gate.request()

    def next(self) -> Element:
        while (polled := self.gate.poll()) is None:
            self._woken.wait()
        return polled[1]


class _Writer:
    """As a task writes: waits where there is no room."""

    def __init__(self, partition: ResultPartition, signal: Signal) -> None:
        self._partition = partition
        self._put = partition.subpartitions[0].put
        self._woken = signal
        partition.listen(self._woken.set)

    def put(self, element: Element) -> None:
        while not self._partition.has_room():
            self._woken.wait()
        self._put(element)


class OverChannels(Contender):
    """Between two task processes, *node* says whether by a unix socket or by TCP."""

    def __init__(self, name: str, node: str, **settings: Any) -> None:
        self.name = name
        self._environment = NetworkEnvironment("here", SECRET, node_id="one", **settings)
        address = codec.encode(self._environment.address).hex()
        self._peer = Peer("over_channels", node, address)
        self._there: DataAddress = codec.decode(bytes.fromhex(self._peer.first))
        self._number = 0
        self._echo: tuple[_Writer, _Reader] | None = None

    def send(self, batch: pa.RecordBatch, count: int) -> None:
        self._send([Columns(batch)] * count, 0)

    def send_blocks(self, block: Block, count: int, buffer_timeout: float | None) -> None:
        """The same with Python values."""
        self._send([block] * count, buffer_timeout)

    def _send(self, elements: list[Any], buffer_timeout: float | None) -> None:
        self._number += 1
        partition = self._environment.create_partition(
            self._number, "Source", 1, buffer_timeout=buffer_timeout
        )
        signal = self._environment.signal()
        partition.on_consumed(signal.set)
        self._peer.say(f"read {self._number}")
        writer = _Writer(partition, signal)
        for element in elements:
            writer.put(element)
        writer.put(END_OF_INPUT)
        while not partition.is_consumed:
            signal.wait()
        self._environment.release_partition(partition)

    def echo(self, batch: pa.RecordBatch) -> None:
        if self._echo is None:
            there = self._environment.create_partition("there", "Source", 1, buffer_timeout=0)
            self._peer.say("echo 0")
            gate = self._environment.create_gate("Sink", [ChannelSource("back", 0, self._there)])
            signal = self._environment.signal()
            self._echo = _Writer(there, signal), _Reader(gate, signal)
        writer, reader = self._echo
        writer.put(Columns(batch))
        reader.next()

    def close(self) -> None:
        self._peer.close()
        self._environment.close()


def main(node: str, address: str) -> None:
    """Do what the lines on standard input say."""
    environment = NetworkEnvironment("there", SECRET, node_id=node)
    here = codec.decode(bytes.fromhex(address))
    tell(codec.encode(environment.address).hex())
    for line in sys.stdin:
        word, number = line.split()
        if word == "read":
            threading.Thread(target=_read, args=(environment, int(number), here)).start()
        else:
            threading.Thread(target=_echo, args=(environment, here), daemon=True).start()


def _read(environment: NetworkEnvironment, number: int, here: DataAddress) -> None:
    gate = environment.create_gate("Sink", [ChannelSource(number, 0, here)])
    reader = _Reader(gate, environment.signal())
    while not isinstance(reader.next(), EndOfInput):
        pass
    gate.end(0)


def _echo(environment: NetworkEnvironment, here: DataAddress) -> None:
    partition = environment.create_partition("back", "Source", 1, buffer_timeout=0)
    signal = environment.signal()
    writer = _Writer(partition, signal)
    gate = environment.create_gate("Sink", [ChannelSource("there", 0, here)])
    reader = _Reader(gate, signal)
    while True:
        writer.put(reader.next())


if __name__ == "__main__":
    main(*sys.argv[1:])
