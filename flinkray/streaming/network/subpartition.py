"""The elements of a task's output for one consumer, and the interface of the consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from flinkray.streaming.network.buffers import (
    EVENTS,
    OVERHEAD,
    Buffer,
    WaitingBarrier,
    count_records,
    in_halves,
    in_pieces,
)
from flinkray.streaming.network.element_codec import Encoded
from flinkray.streaming.network.errors import BatchTooLargeError
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    Columns,
    Element,
    Watermark,
    together,
)
from flinkray.streaming.records.in_flight import EncodedElements, InFlight, kept
from flinkray.streaming.records.sizes import bytes_of

if TYPE_CHECKING:
    from flinkray.streaming.network.result_partition import ResultPartition

_SIGN_SIZE = 64
"""Bytes counted for an element that is not a batch."""


class SubpartitionView(Protocol):
    """Interface of the consumer of a subpartition, in this process or behind a connection.
    Methods are called with the partition's lock held, except :meth:`notify` and :meth:`fail`."""

    is_remote: bool
    """Whether the view takes encoded buffers."""
    position: int
    """Number of buffers that this view has taken. Used by results that are read several times."""

    def becomes_ready(self, buffer: Buffer) -> bool:
        """Note that the subpartition has data for this consumer, first of all *buffer*. Returns
        whether the caller has to call :meth:`notify`, after it has released the partition's lock.
        """

    def notify(self) -> None: ...

    def pass_on(self, encoded: Encoded) -> Callable[[], None] | None:
        """Take elements, before which no buffer waits, if they can be sent at once. Returns a
        callback that sends them; the caller has to call it after it has released the partition's
        lock, whatever else happens. None: the elements have to wait in a buffer."""

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        """Give *barrier* to the consumer before all waiting buffers; only for consumers in this
        process. Returns a callback that the caller has to call after it has released the
        partition's lock."""

    def fail(self, reason: str) -> None:
        """Tell the consumer that its input has failed and will not be complete."""


class Subpartition:
    """A :class:`Channel` of a result: the task puts elements in, and a view takes buffers out.
    Small batches wait for others, up to the partition's buffer time-out, and become one batch.
    Barriers and the end of the input never wait."""

    def __init__(self, partition: ResultPartition, index: int) -> None:
        self.partition = partition
        self.index = index
        self.is_processed = False
        """Whether the consumer has processed all data."""
        self.is_consumed = False
        """Whether the consumer has read everything to the end."""
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
        """Elements that wait to be sent together with others."""
        self._open_size = 0
        self._open_since = 0.0
        self._sent = ChannelMetrics()
        self._full_since: float | None = None

    # --- the writer's -------------------------------------------------------------------------

    def has_room(self) -> bool:
        return self.partition.has_room()

    def put(self, element: Element) -> None:
        """Write an element.
        Raises ConsumerLostError, PartitionReleasedError: the output can no longer be read.
        UnpicklableRecordsError, BatchTooLargeError: these records cannot be sent."""
        self.partition.check()
        size = self._size_of(element)
        notify: Callable[[], None] | None = None
        with self._lock:
            if size >= self._segment // 2:
                waiting = self._take_signs()
                pieces = in_pieces(element, size)
                for piece in pieces:
                    part = size // len(pieces)
                    self._finish([*waiting, piece], part + _SIGN_SIZE * len(waiting))
                    waiting = []
            elif isinstance(element, EVENTS):
                self._finish_open()
                self._finish([element], 0)
            elif self._timeout == 0:
                notify = self._put_alone(element, size)
            else:
                self._add(element, size)
            notify = notify or self._ready()
        if notify is not None:
            notify()

    def put_first(self, barrier: Barrier) -> list[InFlight]:
        """Send a barrier before everything that was not sent yet (unaligned checkpoints, ST-06).
        Returns the overtaken elements. They belong to the checkpoint, and are sent after the
        barrier. Raises the errors of :meth:`put`."""
        self.partition.check()
        with self._lock:
            self._finish_open()
            overtaken = self._in_flight(len(self._buffers))
            notify = [self._overtake(barrier), self._ready()]
        for callback in notify:
            if callback is not None:
                callback()
        return overtaken

    def put_waiting(self, waiting: WaitingBarrier) -> None:
        """Write a barrier behind the elements that wait. :meth:`overtake` may later send it before
        them. Raises the errors of :meth:`put`."""
        self.partition.check()
        with self._lock:
            self._finish_open()
            buffer = self._new_buffer([waiting.barrier], 0)
            buffer.waiting = waiting
            self._keep(buffer)
            notify = self._ready()
        if notify is not None:
            notify()

    def hand_over(self) -> None:
        """Detach the consumer, if it runs in this process and has processed all data: only barriers
        and ends are left for it, so the producer need not wait for it. Call this after the end of
        the input was put in."""
        view = self.view
        if not self.is_processed or view is None or view.is_remote:
            return
        for waiting in self._settle_waiting():  # before the producer leaves
            waiting.tell()
        self.consumed(view)

    def _settle_waiting(self) -> list[WaitingBarrier]:
        """Mark the barriers that wait in this subpartition as sent: no data is before them to
        overtake. Returns those that every other subpartition has sent, too."""
        settled = []
        with self._lock:
            for buffer in self._buffers:
                waiting, buffer.waiting = buffer.waiting, None
                if waiting is not None:
                    waiting.leave(self.index, ())
                    if waiting.is_settled:
                        settled.append(waiting)
        return settled

    def flush(self) -> None:
        if self._open:
            with self._lock:
                self._finish_open()
                notify = self._ready()
            if notify is not None:
                notify()

    def metrics(self) -> ChannelMetrics:
        with self._lock:
            sent = self._sent
            return ChannelMetrics(
                sent.bytes, sent.records, sent.buffers, self.queued, len(self._buffers)
            )

    def _size_of(self, element: Element) -> int:
        if type(element) is Columns:
            size = int(element.batch.get_total_buffer_size())
            if size >= self._segment // 2:  # for a slice, that is the size of the whole
                size = pa.ipc.get_record_batch_size(element.batch)
            return size if element.timestamps is None else size + 8 * len(element)
        if type(element) is Block:
            view = self.view
            if view is not None and not view.is_remote:
                return bytes_of(element)  # local blocks are never encoded
            return int(len(element) * self.partition.record_size)
        return _SIGN_SIZE

    def _put_alone(self, element: Element, size: int) -> Callable[[], None] | None:
        """Write an element that does not wait for others. Returns a callback that the caller has to
        call after it has released the lock. None: the element waits for the consumer."""
        view = self.view
        if view is None or not view.is_remote or self._buffers:
            self._finish([element], size)
            return None
        try:
            encoded = self._encode([element])
        except BatchTooLargeError:
            self._finish([element], size)
            return None
        sending = view.pass_on(encoded)
        if sending is None:
            self._keep(_encoded_buffer([element], encoded))
        else:
            self._note_sent(encoded.records, encoded.size)
        return sending

    def _add(self, element: Element, size: int) -> None:
        opened = self._open
        if opened and type(element) is Watermark and type(opened[-1]) is Watermark:
            if element.timestamp > opened[-1].timestamp:
                opened[-1] = element  # the later watermark replaces the earlier one
        else:
            opened.append(element)
            self._open_size += size
        timeout = self._timeout
        if self._open_size >= self._segment:
            self._finish_open()
        elif timeout is not None:
            if len(opened) == 1:
                self._open_since = self._clock.monotonic()
                self.partition.flush_at(self._open_since + timeout)
            elif self._clock.monotonic() - self._open_since >= timeout:
                self._finish_open()

    # --- buffers; the lock is held ------------------------------------------------------------

    def finish_due(self, now: float) -> Callable[[], None] | None:
        """Close the buffer that collects elements, so that it can be sent, if its time-out has
        passed.
        Returns a callback that the caller has to call after it has released the lock, or None."""
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

    def _take_signs(self) -> list[Element]:
        """Remove the waiting watermarks and idle status and return them, to be sent together with
        the next batch. If records wait with them, send their buffer instead and return an empty
        list."""
        opened = self._open
        if any(isinstance(element, Block | Columns) for element in opened):
            self._finish_open()
            return []
        self._open, self._open_size = [], 0
        return opened

    def _finish(self, elements: Sequence[Element], size: int) -> None:
        try:
            buffer = self._new_buffer(elements, size)
        except BatchTooLargeError:
            if count_records(elements) < 2:
                raise
            for element in elements:
                for piece in in_halves(element):
                    self._finish([piece], size // 2)
        else:
            self._keep(buffer)

    def _keep(self, buffer: Buffer) -> None:
        self._account(buffer.size)
        self._buffers.append(buffer)

    def _new_buffer(self, elements: Sequence[Element], size: int) -> Buffer:
        view = self.view
        if view is not None and not view.is_remote:
            return Buffer(elements, count_records(elements), size + OVERHEAD)
        return _encoded_buffer(elements, self._encode(elements))

    def _encode(self, elements: Sequence[Element]) -> Encoded:
        partition = self.partition
        encoded = partition.encoder.encode(elements, self.known_schemas)
        if encoded.records:
            seen = encoded.size / encoded.records
            partition.record_size += (seen - partition.record_size) / 8
        return encoded

    def overtake(self, waiting: WaitingBarrier) -> list[Callable[[], None] | None]:
        """Send a waiting barrier before the buffers in front of it, unless it was sent already.
        Returns a list of callbacks that the caller has to call after it has released the lock; None
        in the list: nothing to call."""
        for place, buffer in enumerate(self._buffers):
            if buffer.waiting is waiting:
                waiting.leave(self.index, self._in_flight(place))
                del self._buffers[place]
                self._account(-buffer.size)
                return [self._overtake(replace(waiting.barrier, unaligned=True)), self._ready()]
        return []

    def _in_flight(self, count: int) -> list[InFlight]:
        elements: list[InFlight] = []
        for buffer in islice(self._buffers, count):
            if buffer.is_event:
                continue
            if buffer.elements is None:
                encoder = self.partition.encoder
                elements.append(EncodedElements(buffer.descriptions, buffer.parts, encoder))
            else:
                elements += kept(buffer.elements)
        return elements

    def _overtake(self, barrier: Barrier) -> Callable[[], None] | None:
        """Send a barrier before all waiting buffers, but after barriers that have overtaken them
        earlier. Returns a callback that the caller has to call after it has released the lock, or
        None."""
        view = self.view
        if view is not None and not view.is_remote:
            return view.overtake(barrier)
        buffer = self._new_buffer([barrier], 0)
        buffer.is_urgent = True
        self._account(buffer.size)
        place = sum(1 for _ in takewhile(lambda waiting: waiting.is_urgent, self._buffers))
        self._buffers.insert(place, buffer)
        return None

    def _account(self, size: int) -> None:
        was_full = self.queued >= self._most_queued
        self.queued += size
        partition = self.partition
        partition.queued += size
        partition.full += (self.queued >= self._most_queued) - was_full

    def _ready(self) -> Callable[[], None] | None:
        """Tell the view that there are new buffers. Returns a callback that the caller has to call
        after it has released the lock; None: the view needs no call."""
        view, buffers = self.view, self._buffers
        if view is not None and buffers and view.becomes_ready(buffers[0]):
            return view.notify
        return None

    # --- the view's; the lock is held ---------------------------------------------------------

    def attach(self, view: SubpartitionView) -> bool:
        """Make *view* the reader. Returns whether there is data already, so that the caller has to
        call the view's ``notify``. Raises ValueError: the subpartition has, or had, another
        reader."""
        if self.view is not None or self.is_consumed:
            raise ValueError(
                f"subpartition {self.index} of {self.partition.id} is read by another consumer"
            )
        self.view = view
        return bool(self._buffers) and view.becomes_ready(self._buffers[0])

    def head(self, view: SubpartitionView) -> Buffer | None:
        return self._buffers[0] if self._buffers else None

    def pop(self, view: SubpartitionView) -> Buffer:
        """Remove and return the next buffer. Its elements are encoded, unless it was written for a
        consumer in this process."""
        buffer = self._buffers.popleft()
        self._account(-buffer.size)
        self._note_sent(buffer.records, buffer.data_size)
        waiting = buffer.waiting
        if waiting is not None:
            waiting.leave(self.index, ())
            if waiting.is_settled:
                self.partition.settled.append(waiting)
        return buffer

    def _note_sent(self, records: int, size: int) -> None:
        sent = self._sent
        sent.buffers += 1
        sent.records += records
        sent.bytes += size

    def discard(self) -> list[SubpartitionView]:
        """Drop the waiting buffers and detach the reader. Returns a list with the reader's view,
        which the caller has to fail; empty without a reader, or if it has read everything."""
        self._open = []
        self._buffers.clear()
        self.queued = 0
        view, self.view = self.view, None
        return [] if view is None or self.is_consumed else [view]

    # --- the view's; without the lock ---------------------------------------------------------

    def processed(self) -> None:
        self.is_processed = True
        self.partition.subpartition_processed()

    def consumed(self, view: SubpartitionView) -> None:
        self.is_consumed = True
        self.partition.subpartition_consumed()

    def lost(self, view: SubpartitionView, failure: Exception) -> None:
        self.partition.consumer_lost(failure)


def _encoded_buffer(elements: Sequence[Element], encoded: Encoded) -> Buffer:
    buffer = Buffer(elements, encoded.records, encoded.size + OVERHEAD)
    buffer.elements = None
    buffer.descriptions = encoded.descriptions
    buffer.parts = encoded.parts
    return buffer
