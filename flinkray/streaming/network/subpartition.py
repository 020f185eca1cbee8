"""The producing end of one channel: what was written and not sent yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from flinkray.streaming.network.batch_sizes import in_halves, in_pieces, together
from flinkray.streaming.network.buffers import OVERHEAD, Buffer
from flinkray.streaming.network.errors import BatchTooLargeError
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.views import LocalView
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    Columns,
    Element,
    EndOfInput,
    Watermark,
)

if TYPE_CHECKING:
    from flinkray.streaming.network.result_partition import ResultPartition

_SIGN_SIZE = 64
"""Bytes that are counted for an element that is no batch."""


class SubpartitionView(Protocol):
    """Who takes buffers from a subpartition.  Methods are called with the partition's lock held,
    but for :meth:`notify` and :meth:`fail`."""

    is_remote: bool
    """Takes encoded buffers."""
    position: int
    """Buffers that it has taken, where several views read the same ones."""

    def becomes_ready(self) -> bool:
        """Something is there to be taken; whether :meth:`notify` is to be called for that."""

    def notify(self) -> None:
        """Something can be taken."""

    def fail(self, reason: str) -> None:
        """There will be nothing more."""


class Subpartition:
    """A :class:`~flinkray.streaming.channels.Channel`: the task puts elements in, a view takes
    buffers out.

    Small batches wait for others, up to the partition's buffer time-out, and become one batch;
    large ones are sent as they are.  Barriers and the end of input are never kept waiting.
    """

    def __init__(self, partition: ResultPartition, index: int) -> None:
        self.partition = partition
        self.index = index
        self.is_consumed = False
        self.view: SubpartitionView | None = None
        self.known_schemas: set[int] = set()
        self.queued = 0
        """Bytes of finished buffers that wait."""
        self._most_queued = partition.settings.most_queued
        self._segment = partition.settings.segment_size
        self._timeout = partition.buffer_timeout
        self._lock = partition.lock
        self._clock = partition.clock
        self._buffers: deque[Buffer] = deque()
        self._open: list[Element] = []
        """What waits to be sent with more."""
        self._open_size = 0
        self._open_since = 0.0
        self._sent = ChannelMetrics()
        self._full_since: float | None = None

    # --- the writer's -------------------------------------------------------------------------

    def has_room(self) -> bool:
        """
        Raises:
            ConsumerLostError, PartitionReleasedError: there is no use in writing.
        """
        return self.partition.has_room()

    def put(self, element: Element) -> None:
        """Write.

        Raises:
            ConsumerLostError, PartitionReleasedError: there is no use in writing.
            UnpicklableRecordsError, BatchTooLargeError: these records cannot be sent.
        """
        self.partition.check()
        size = self._size_of(element)
        with self._lock:
            if size >= self._segment // 2:
                self._finish_open()
                for piece in in_pieces(element, size):
                    self._finish([piece], size * _records(piece) // max(1, _records(element)))
            elif isinstance(element, Barrier | EndOfInput):
                self._finish_open()
                self._finish([element], 0)
            else:
                self._add(element, size)
            notify = self._ready()
        if notify is not None:
            notify()

    def put_first(self, barrier: Barrier) -> list[Element]:
        """Let a barrier overtake all that was not sent yet (unaligned checkpoints, ST-06); what it
        has overtaken, which belongs to the checkpoint and will be sent nevertheless."""
        self.partition.check()
        with self._lock:
            self._finish_open()
            overtaken = [
                element for buffer in self._buffers for element in self._elements_of(buffer)
            ]
            view = self.view
            if view is None or view.is_remote:
                buffer = self._new_buffer([barrier], 0)
                buffer.is_urgent = True
                self._buffers.appendleft(buffer)
            notify = self._ready()
        if isinstance(view, LocalView):
            view.overtake(barrier)
        if notify is not None:
            notify()
        return overtaken

    def flush(self) -> None:
        """Send what waits to be sent with more."""
        if self._open:
            with self._lock:
                self._finish_open()
                notify = self._ready()
            if notify is not None:
                notify()

    def metrics(self) -> ChannelMetrics:
        """What was sent, and what waits."""
        with self._lock:
            sent = self._sent
            return ChannelMetrics(
                sent.bytes, sent.records, sent.buffers, self.queued, len(self._buffers)
            )

    def _size_of(self, element: Element) -> int:
        if type(element) is Columns:
            size = int(element.batch.get_total_buffer_size())
            if size >= self._segment // 2:  # of a slice, that is the size of the whole
                size = pa.ipc.get_record_batch_size(element.batch)
            return size if element.timestamps is None else size + 8 * len(element)
        if type(element) is Block:
            return int(len(element) * self.partition.record_size)
        return _SIGN_SIZE

    def _add(self, element: Element, size: int) -> None:
        opened = self._open
        if opened and type(element) is Watermark and type(opened[-1]) is Watermark:
            if element.timestamp > opened[-1].timestamp:
                opened[-1] = element  # says all that the one before has said
        else:
            opened.append(element)
            self._open_size += size
        timeout = self._timeout
        if timeout == 0 or self._open_size >= self._segment:
            self._finish_open()
        elif timeout is not None:
            if len(opened) == 1:
                self._open_since = self._clock.monotonic()
                self.partition.flush_at(self._open_since + timeout)
            elif self._clock.monotonic() - self._open_since >= timeout:
                self._finish_open()

    # --- buffers; the lock is held ------------------------------------------------------------

    def finish_due(self, now: float) -> Callable[[], None] | None:
        """Finish what has waited long enough; what is to be called then, without the lock."""
        if self._open:
            assert self._timeout is not None
            due = self._open_since + self._timeout
            if now < due:
                self.partition.flush_at(due)
            else:
                self._finish_open()
        return self._ready()

    def _finish_open(self) -> None:
        opened, size = self._open, self._open_size
        if opened:
            self._open, self._open_size = [], 0
            self._finish(together(opened) if len(opened) > 1 else opened, size)

    def _finish(self, elements: Sequence[Element], size: int) -> None:
        try:
            buffer = self._new_buffer(elements, size)
        except BatchTooLargeError:
            if sum(map(_records, elements)) < 2:
                raise
            for element in elements:
                for piece in in_halves(element):
                    self._finish([piece], size // 2)
        else:
            self._keep(buffer)

    def _keep(self, buffer: Buffer) -> None:
        self._buffers.append(buffer)

    def _new_buffer(self, elements: Sequence[Element], size: int) -> Buffer:
        buffer = Buffer(elements, sum(map(_records, elements)), size + OVERHEAD)
        if self.view is None or self.view.is_remote:
            self._encode(buffer, elements)
        self._account(buffer.size)
        return buffer

    def _encode(self, buffer: Buffer, elements: Sequence[Element]) -> None:
        partition = self.partition
        encoded = partition.encoder.encode(elements, self.known_schemas)
        buffer.elements = None
        buffer.descriptions = encoded.descriptions
        buffer.parts = encoded.parts
        buffer.size = encoded.size + OVERHEAD
        if buffer.records:
            seen = encoded.size / buffer.records
            partition.record_size += (seen - partition.record_size) / 8

    def _elements_of(self, buffer: Buffer) -> Sequence[Element]:
        return self.partition.decode(buffer) if buffer.elements is None else buffer.elements

    def _account(self, size: int) -> None:
        was_full = self.queued >= self._most_queued
        self.queued += size
        partition = self.partition
        partition.queued += size
        partition.full += (self.queued >= self._most_queued) - was_full

    def _ready(self) -> Callable[[], None] | None:
        """What is to be called, without the lock, for what can be taken now."""
        view = self.view
        if view is not None and self._buffers and view.becomes_ready():
            return view.notify
        return None

    # --- the view's; the lock is held ---------------------------------------------------------

    def attach(self, view: SubpartitionView) -> bool:
        """Whether the view is to be notified.

        Raises:
            ValueError: somebody else reads it, or has read it.
        """
        if self.view is not None or self.is_consumed:
            raise ValueError(
                f"subpartition {self.index} of {self.partition.id} is read by another consumer"
            )
        self.view = view
        return bool(self._buffers) and view.becomes_ready()

    def head(self, view: SubpartitionView) -> Buffer | None:
        """What is next; it stays."""
        return self._buffers[0] if self._buffers else None

    def pop(self, view: SubpartitionView) -> Buffer:
        """The next; encoded, unless it was written for a view in this process."""
        buffer = self._buffers.popleft()
        self._account(-buffer.size)
        self.note_sent(buffer)
        return buffer

    def note_sent(self, buffer: Buffer) -> None:
        """Count it."""
        self._sent.add_buffer(buffer.records, buffer.data_size)

    def discard(self) -> list[SubpartitionView]:
        """Drop what waits; those who have to be told."""
        self._open = []
        self._buffers.clear()
        self.queued = 0
        view, self.view = self.view, None
        return [] if view is None or self.is_consumed else [view]

    # --- the view's; without the lock ---------------------------------------------------------

    def consumed(self, view: SubpartitionView) -> None:
        """The consumer has read all."""
        self.is_consumed = True
        self.partition.subpartition_consumed()

    def lost(self, view: SubpartitionView, failure: Exception) -> None:
        """The consumer is gone before it has read all."""
        self.partition.consumer_lost(failure)


def _records(element: Element) -> int:
    return len(element) if isinstance(element, Block | Columns) else 0
