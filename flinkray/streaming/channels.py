"""Channels between tasks, the writer in front of them and the gate behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Protocol

from flinkray.streaming.records.elements import (
    ACTIVE,
    END_OF_INPUT,
    IDLE,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfInput,
    Watermark,
)
from flinkray.streaming.records.in_flight import InFlight, Settled
from flinkray.streaming.records.partitioners import StreamPartitioner
from flinkray.streaming.records.sizes import bytes_of
from flinkray.streaming.time.time_service import ProcessingTimeService

COALESCE_BELOW = 512
"""Blocks smaller than this wait for others to the same channel before they are sent."""

SEND_FROM = 1 << 18
"""Bytes; blocks that are larger do not."""


class Channel(Protocol):
    """The way from one subtask to another: ordered, with room for a bounded number of elements."""

    def put(self, element: Element) -> None:
        """Send; allowed beyond the room there is, but writers ask :meth:`has_room` first."""

    def put_first(self, barrier: Barrier) -> object:
        """Send it before all that waits."""

    def has_room(self) -> bool:
        """Whether the receiver keeps up."""


class MemoryChannel:
    """A channel inside one process and thread.

    Args:
        capacity: elements that may wait.
        most_bytes: of the batches among them, about.
    """

    __slots__ = ("_bytes", "_capacity", "_most_bytes", "_sizes", "elements", "overtaken")

    def __init__(self, capacity: int = 16, most_bytes: int = 1 << 25) -> None:
        self._capacity = capacity
        self._most_bytes = most_bytes
        self.elements: deque[Element] = deque()
        self.overtaken: Sequence[Element] = ()
        """What waited when the barrier that overtook it was put in."""
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def put(self, element: Element) -> None:
        size = bytes_of(element) if isinstance(element, Block | Columns) else 0
        self.elements.append(element)
        self._sizes.append(size)
        self._bytes += size

    def put_first(self, barrier: Barrier) -> None:
        """Before all that waits."""
        self.overtaken = tuple(self.elements)
        self.elements.appendleft(barrier)
        self._sizes.appendleft(0)

    def take(self) -> Element:
        """The next element; there is one."""
        self._bytes -= self._sizes.popleft()
        return self.elements.popleft()

    def has_room(self) -> bool:
        return len(self.elements) < self._capacity and self._bytes < self._most_bytes


class RecordWriter:
    """Divides batches among the channels of one edge.

    Small blocks are put together per channel, so that a wide fan-out does not make tiny batches;
    whatever must keep its place among the records sends them off first.

    Args:
        buffer_timeout: milliseconds after which they are sent in any case; 0: records are not put
            together, -1: until there are enough, None: until nothing more comes at the moment.
        time_service: fires the time-out.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        partitioner: StreamPartitioner,
        buffer_timeout: int | None = None,
        time_service: ProcessingTimeService | None = None,
    ) -> None:
        self.channels = tuple(channels)
        self.partitioner = partitioner
        self._timeout = buffer_timeout
        self._time_service = time_service
        self._coalesce_below = 1 if buffer_timeout == 0 else COALESCE_BELOW
        self._waiting: list[list[Block]] = [[] for _ in channels]
        self._waiting_records = [0] * len(self.channels)
        self._any_waiting = False
        self._scheduled = False

    def has_room(self) -> bool:
        return all(channel.has_room() for channel in self.channels)

    def process_block(self, block: Block) -> None:
        for channel, part in self.partitioner.split_block(block):
            waiting = self._waiting_records[channel] + len(part)
            if waiting == len(part) >= self._coalesce_below:
                self.channels[channel].put(part)
            elif bytes_of(part) >= SEND_FROM:
                self._send(channel)
                self.channels[channel].put(part)
            else:
                if not self._any_waiting:
                    self._any_waiting = True
                    self._flush_in_time()
                self._waiting[channel].append(part)
                self._waiting_records[channel] = waiting
                if waiting >= COALESCE_BELOW:
                    self._send(channel)

    def process_columns(self, columns: Columns) -> None:
        for channel, part in self.partitioner.split_columns(columns):
            self._send(channel)
            self.channels[channel].put(part)

    def process_watermark(self, timestamp: int) -> None:
        self._to_all(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self._to_all(IDLE if idle else ACTIVE)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """What it overtakes in memory, its receivers find there."""
        if barrier.unaligned:
            self.flush()
            for channel in self.channels:
                channel.put_first(barrier)
        else:
            self._to_all(barrier)
        settled({})

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        self._to_all(CancelledBarrier(checkpoint_id))

    def end_of_input(self) -> None:
        self._to_all(END_OF_INPUT)

    def _to_all(self, element: Element) -> None:
        self.flush()
        for channel in self.channels:
            channel.put(element)

    def _flush_in_time(self) -> None:
        service, timeout = self._time_service, self._timeout
        if service is not None and timeout is not None and timeout > 0 and not self._scheduled:
            self._scheduled = True
            service.schedule(service.now() + timeout, self._on_timeout)

    def _on_timeout(self, _: int) -> None:
        self._scheduled = False
        self.flush()

    def flush_when_idle(self) -> None:
        """Nothing more comes at the moment: send what waits, unless it is to wait until there is
        more of it."""
        if self._timeout is None or self._timeout >= 0:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if self._any_waiting:
            for channel in range(len(self.channels)):
                self._send(channel)
            self._any_waiting = False

    def _send(self, channel: int) -> None:
        blocks = self._waiting[channel]
        if blocks:
            for block in _one_block_each(blocks):
                self.channels[channel].put(block)
            self._waiting[channel] = []
            self._waiting_records[channel] = 0


def _one_block_each(blocks: list[Block]) -> Iterable[Block]:
    """The blocks put together, those with timestamps and those without, which the inputs of a union
    may bring, apart: in the order in which they came."""
    if len(blocks) == 1:
        return blocks
    runs = groupby(blocks, lambda block: block.timestamps is None)
    return [_one_block(list(run)) for _, run in runs]


def _one_block(blocks: list[Block]) -> Block:
    first = blocks[0]
    if len(blocks) == 1:
        return first
    values = list(chain.from_iterable(block.values for block in blocks))
    timestamps = keys = None
    if first.timestamps is not None:
        timestamps = list(chain.from_iterable(block.timestamps or () for block in blocks))
    if all(block.keys is not None for block in blocks):
        keys = list(chain.from_iterable(block.keys or () for block in blocks))
    return Block(values, timestamps, keys, first.origin)


class InputGate:
    """The channels of one input, read in turn, save those that are blocked."""

    def __init__(self, channels: Sequence[MemoryChannel]) -> None:
        self.channels = list(channels)
        self._open = [True] * len(self.channels)
        self._blocked = [False] * len(self.channels)
        self._next = 0

    @property
    def finished(self) -> bool:
        return not any(self._open)

    def poll(self) -> tuple[int, Element] | None:
        """The next element and its channel; None where there is none at the moment."""
        count = len(self.channels)
        for step in range(count):
            channel = (self._next + step) % count
            if self._blocked[channel]:
                continue
            elements = self.channels[channel].elements
            if elements:
                self._next = (channel + 1) % count
                return channel, self.channels[channel].take()
        return None

    def end(self, channel: int) -> None:
        """The channel is closed."""
        self._open[channel] = False

    def block(self, channel: int) -> None:
        """Read nothing from it until all are resumed."""
        self._blocked[channel] = True

    def resume_all(self) -> None:
        """Read from all channels."""
        self._blocked = [False] * len(self.channels)

    def poll_overtaking(self) -> tuple[int, Barrier] | None:
        """A barrier that has overtaken what waits in its channel, and its channel.  In memory it is
        polled as the next element of its channel."""
        return None

    def in_flight(self, channel: int) -> Sequence[InFlight]:
        """What the barrier that was polled last has overtaken in its channel."""
        return self.channels[channel].overtaken

    def is_ending(self) -> bool:
        """Nothing more comes than what is there: the end of every open channel, too, waits."""
        return all(
            not is_open or (channel.elements and isinstance(channel.elements[-1], EndOfInput))
            for channel, is_open in zip(self.channels, self._open, strict=True)
        )

    def has_elements(self) -> bool:
        return any(
            channel.elements and not blocked
            for channel, blocked in zip(self.channels, self._blocked, strict=True)
        )


__all__ = ["Channel", "EndOfInput", "InputGate", "MemoryChannel", "RecordWriter"]
