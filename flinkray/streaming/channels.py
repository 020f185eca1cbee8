"""Channels between tasks, the writers in front of them and the gates behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from flinkray.streaming.records.elements import (
    ACTIVE,
    END_OF_DATA,
    END_OF_INPUT,
    IDLE,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfInput,
    Watermark,
    together,
)
from flinkray.streaming.records.in_flight import InFlight, Settled
from flinkray.streaming.records.partitioners import StreamPartitioner
from flinkray.streaming.records.sizes import bytes_of
from flinkray.streaming.time.time_service import ProcessingTimeService

COALESCE_BELOW = 512
"""Blocks with fewer records than this wait for other blocks of the same channel."""

SEND_FROM = 1 << 18
"""Bytes. Blocks of at least this size do not wait."""


class Channel(Protocol):
    """Carries elements in order from one subtask to another; a bounded number can wait in it."""

    def put(self, element: Element) -> None:
        """Send an element. It is accepted even if the channel is full, so a writer asks
        :meth:`has_room` first."""

    def has_room(self) -> bool:
        """Return whether the channel has room for another element.
        False: the receiver is too slow."""

    @property
    def is_processed(self) -> bool:
        """Whether the receiver has processed all data."""


class MemoryChannel:
    """A channel inside one process and thread. It is full when *capacity* elements wait in it, or
    batches of about *most_bytes* bytes."""

    __slots__ = ("_bytes", "_capacity", "_most_bytes", "_sizes", "elements", "is_processed")

    def __init__(self, capacity: int = 16, most_bytes: int = 1 << 25) -> None:
        self._capacity = capacity
        self._most_bytes = most_bytes
        self.elements: deque[Element] = deque()
        self.is_processed = False
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def put(self, element: Element) -> None:
        size = bytes_of(element) if isinstance(element, Block | Columns) else 0
        self.elements.append(element)
        self._sizes.append(size)
        self._bytes += size

    def take(self) -> Element:
        """Remove and return the next element; there must be one."""
        self._bytes -= self._sizes.popleft()
        return self.elements.popleft()

    def has_room(self) -> bool:
        return len(self.elements) < self._capacity and self._bytes < self._most_bytes


class RecordWriter:
    """Divides the batches of one edge of the graph among its channels, as a partitioner says."""

    def __init__(self, channels: Sequence[Channel], partitioner: StreamPartitioner) -> None:
        self.channels = tuple(channels)
        self.partitioner = partitioner

    def has_room(self) -> bool:
        for channel in self.channels:  # noqa: SIM110 - all(...) takes longer
            if not channel.has_room():
                return False
        return True

    def process_block(self, block: Block) -> None:
        for channel, part in self.partitioner.split_block(block):
            self.channels[channel].put(part)

    def process_columns(self, columns: Columns) -> None:
        for channel, part in self.partitioner.split_columns(columns):
            self.channels[channel].put(part)

    def process_watermark(self, timestamp: int) -> None:
        self._to_all(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self._to_all(IDLE if idle else ACTIVE)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Send a barrier to all channels, behind all elements that wait to be sent. The barrier
        overtakes nothing, so *settled* is called at once, with no overtaken elements."""
        self._to_all(barrier)
        settled({})

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        self._to_all(CancelledBarrier(checkpoint_id))

    def end_of_data(self) -> None:
        self._to_all(END_OF_DATA)

    def is_processed(self) -> bool:
        return all(channel.is_processed for channel in self.channels)

    def end_of_input(self) -> None:
        self._to_all(END_OF_INPUT)

    def flush_when_idle(self) -> None:
        """Do nothing. In subclasses: send the records that wait to be sent together with others,
        because no further record is available now."""

    def _to_all(self, element: Element) -> None:
        for channel in self.channels:
            channel.put(element)


class MergingWriter(RecordWriter):
    """Merges small blocks of a channel before they are sent, so that a wide fan-out makes no tiny
    batches. Waiting blocks are sent before any other kind of element, so the order is kept.
    *buffer_timeout*: milliseconds that a block may wait for others. 0: blocks are not merged. -1:
    blocks wait for enough records. None: blocks also stop waiting when the task has no next record.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        partitioner: StreamPartitioner,
        buffer_timeout: int | None = None,
        time_service: ProcessingTimeService | None = None,
    ) -> None:
        super().__init__(channels, partitioner)
        self._timeout = buffer_timeout
        self._time_service = time_service
        self._coalesce_below = 1 if buffer_timeout == 0 else COALESCE_BELOW
        self._waiting: list[list[Block]] = [[] for _ in channels]
        self._waiting_records = [0] * len(self.channels)
        self._any_waiting = False
        self._scheduled = False

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

    def _to_all(self, element: Element) -> None:
        self.flush()
        super()._to_all(element)

    def _flush_in_time(self) -> None:
        service, timeout = self._time_service, self._timeout
        if service is not None and timeout is not None and timeout > 0 and not self._scheduled:
            self._scheduled = True
            service.schedule(service.now() + timeout, self._on_timeout)

    def _on_timeout(self, _: int) -> None:
        self._scheduled = False
        self.flush()

    def flush_when_idle(self) -> None:
        """Send the blocks that wait to be merged, unless *buffer_timeout* is -1."""
        if self._timeout is None or self._timeout >= 0:
            self.flush()

    def flush(self) -> None:
        if self._any_waiting:
            for channel in range(len(self.channels)):
                self._send(channel)
            self._any_waiting = False

    def _send(self, channel: int) -> None:
        blocks = self._waiting[channel]
        if blocks:
            for block in together(blocks) if len(blocks) > 1 else blocks:
                self.channels[channel].put(block)
            self._waiting[channel] = []
            self._waiting_records[channel] = 0


class InputGate(ABC):
    """Reads the channels of all inputs of a task in turn, except blocked channels."""

    def __init__(self, channels: int) -> None:
        self._open = [True] * channels
        self._has_data = [True] * channels
        self._blocked = [False] * channels

    @property
    def has_channels(self) -> bool:
        """Whether the task has an input; the task of a source has none."""
        return bool(self._open)

    @property
    def finished(self) -> bool:
        return not any(self._open)

    @abstractmethod
    def poll(self) -> tuple[int, Element] | None:
        """Remove and return (channel, next element); None if there is none at the moment."""

    @property
    def data_has_ended(self) -> bool:
        """Whether the data of all channels has ended. Only barriers may follow."""
        return not any(self._has_data)

    @abstractmethod
    def end_data(self, channel: int) -> None:
        """Note that the task has read all data of the channel, and tell this to the sender."""

    def end(self, channel: int) -> None:
        """Note that no element follows in the channel, so that the channel is not read any more."""
        self._open[channel] = self._has_data[channel] = False

    def block(self, channel: int) -> None:
        """Do not read the channel until :meth:`resume_all` is called."""
        self._blocked[channel] = True

    def resume_all(self) -> None:
        self._blocked = [False] * len(self._blocked)

    @abstractmethod
    def poll_overtaking(self) -> tuple[int, Barrier] | None:
        """Return (channel, barrier) for a barrier that the task must get before elements that
        arrived earlier in its channel, even if that is blocked. None: there is no such barrier."""

    @abstractmethod
    def in_flight(self, channel: int) -> Sequence[InFlight]:
        """Return the elements in a channel that the last polled barrier has overtaken: they arrived
        before the barrier, and the task has not polled them (unaligned checkpoints, ST-06). They
        stay in the channel."""

    @abstractmethod
    def has_elements(self) -> bool:
        """Return whether a call of :meth:`poll` would now return an element or raise an error."""


class MemoryInputGate(InputGate):
    """Reads channels of the same process and thread. No barrier overtakes elements in them."""

    def __init__(self, channels: Sequence[MemoryChannel]) -> None:
        super().__init__(len(channels))
        self.channels = list(channels)
        self._next = 0

    def poll(self) -> tuple[int, Element] | None:
        count = len(self.channels)
        for step in range(count):
            channel = (self._next + step) % count
            if not self._blocked[channel] and self.channels[channel].elements:
                self._next = (channel + 1) % count
                return channel, self.channels[channel].take()
        return None

    def end_data(self, channel: int) -> None:
        self._has_data[channel] = False
        self.channels[channel].is_processed = True

    def poll_overtaking(self) -> None:
        return None

    def in_flight(self, channel: int) -> Sequence[InFlight]:
        return ()

    def has_elements(self) -> bool:
        return any(
            channel.elements and not blocked
            for channel, blocked in zip(self.channels, self._blocked, strict=True)
        )


__all__ = [
    "Channel",
    "EndOfInput",
    "InputGate",
    "MemoryChannel",
    "MemoryInputGate",
    "MergingWriter",
    "RecordWriter",
]
