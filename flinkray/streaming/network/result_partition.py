"""The producing end: what a task writes, divided into one subpartition for each consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import Any, Protocol

import pyarrow as pa

from flinkray.streaming.errors import UnpicklableRecordsError
from flinkray.streaming.network.batch_sizes import in_halves, in_pieces, together
from flinkray.streaming.network.buffers import EVENTS, OVERHEAD, Buffer, count_records
from flinkray.streaming.network.element_codec import ElementEncoder
from flinkray.streaming.network.errors import BatchTooLargeError, PartitionReleasedError
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.network.waiting_barrier import WaitingBarrier
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    Columns,
    Element,
    Watermark,
)
from flinkray.streaming.records.in_flight import EncodedElements, InFlight, Settled, kept
from flinkray.streaming.records.sizes import bytes_of

_SIGN_SIZE = 64
"""Bytes that are counted for an element that is no batch."""


class ResultPartition:
    """What one subtask produces for the consumers of one edge, pipelined: read while it is written.

    One thread writes.  What is written waits in its subpartition until the consumer has credit for
    it; :meth:`has_room` tells when the writer should wait.

    Args:
        partition_id: hashable, and something that a message may hold.
        producer: task and process, for errors.
        buffer_timeout: the longest, in seconds, that a record waits for others to be sent with;
            0: nothing waits; None: until a segment is full.
    """

    is_blocking = False

    def __init__(
        self,
        partition_id: Any,
        producer: str,
        subpartitions: int,
        settings: NetworkSettings,
        timers: Timers,
        buffer_timeout: float | None,
    ) -> None:
        self.id = partition_id
        self.producer = producer
        self.settings = settings
        self.buffer_timeout = buffer_timeout
        self.clock = timers.clock
        self.encoder = ElementEncoder()
        self.lock = threading.Lock()
        self.record_size = 64.0
        """Estimated bytes of a record that has no Arrow type and is sent to another process;
        follows what was encoded."""
        self.queued = 0
        """Bytes of finished buffers that wait, in all subpartitions."""
        self.full = 0
        """Subpartitions that have as much waiting as they may."""
        self.settled: deque[WaitingBarrier] = deque()
        """Those that were sent in line, or have overtaken what was not sent; to be told."""
        self._timers = timers
        self._most_queued = subpartitions * settings.exclusive_credit + settings.floating_credit
        self._flush_at: float | None = None
        self._full_since: float | None = None
        self._full_seconds = 0.0
        self._failure: Exception | None = None
        self._unsent: Exception | None = None
        """Of records that could not be sent; the writer has not heard of it yet."""
        self._on_change: Callable[[], None] | None = None
        self._on_consumed: Callable[[], None] | None = None
        self.subpartitions: tuple[Subpartition, ...] = self._make(subpartitions)
        """Each is a channel for a :class:`~flinkray.streaming.channels.RecordWriter`."""

    def _make(self, count: int) -> tuple[Subpartition, ...]:
        return tuple(Subpartition(self, index) for index in range(count))

    # --- for the writer -----------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether the consumers keep up.

        Raises:
            ConsumerLostError, PartitionReleasedError: there is no use in writing.
        """
        self.check()
        has_room = self.full <= 0 and self.queued < self._most_queued
        if has_room:
            if self._full_since is not None:
                self._note_room()
        elif self._full_since is None:
            with self.lock:
                self._full_since = self.clock.monotonic()
            return self.has_room()  # what made room meanwhile could not have told
        return has_room

    def _note_room(self) -> None:
        with self.lock:
            if self._full_since is not None:
                self._full_seconds += self.clock.monotonic() - self._full_since
                self._full_since = None

    def restore(self, subpartition: int, elements: Sequence[Element]) -> None:
        """Send what was in flight in a subpartition when a checkpoint overtook it; before anything
        is written.  Raises what :meth:`Subpartition.put` does."""
        for element in elements:
            self.subpartitions[subpartition].put(element)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Send it to all consumers.  Raises what :meth:`Subpartition.put` does."""
        pause = self._pause_before(barrier)
        if barrier.unaligned or (pause is not None and pause <= 0):
            barrier = replace(barrier, unaligned=True)
            overtaken = {it.index: it.put_first(barrier) for it in self.subpartitions}
            settled({index: elements for index, elements in overtaken.items() if elements})
            return
        if pause is None:
            for subpartition in self.subpartitions:
                subpartition.put(barrier)
            settled({})
            return
        waiting = WaitingBarrier(barrier, len(self.subpartitions), settled)
        for subpartition in self.subpartitions:
            subpartition.put_waiting(waiting)
        self._timers.call_at(self.clock.monotonic() + pause, partial(self._overtake, waiting))

    def _pause_before(self, barrier: Barrier) -> float | None:
        """Seconds until it is to overtake what waits; None: it stays in line."""
        overtakes_at = barrier.overtakes_at
        return None if overtakes_at is None else overtakes_at / 1000 - self.clock.time()

    def _overtake(self, waiting: WaitingBarrier) -> None:
        """It has waited for too long (ST-08).  What it overtakes may have to be copied; if that
        fails, the writer is told."""
        with self.lock:
            if waiting.is_settled:
                return
            notify: list[Callable[[], None] | None] = []
            try:
                for subpartition in self.subpartitions:
                    notify += subpartition.overtake(waiting)
            except Exception as error:  # noqa: BLE001 - whatever the class of a record raises
                self._unsent = error
                notify.append(self._on_change)
        if waiting.is_settled:
            waiting.tell()  # before its consumers have it, and may come to their ends
        for callback in notify:
            if callback is not None:
                callback()

    def flush(self) -> None:
        """Send what waits to be sent with more."""
        for subpartition in self.subpartitions:
            subpartition.flush()

    def listen(self, callback: Callable[[], None]) -> None:
        """Be called, from any thread, when there may be room again and when writing has become
        useless.  It must not block."""
        self._on_change = callback

    def fail(self, reason: str) -> None:
        """The task has failed or was cancelled: its consumers shall fail too."""
        self._end(
            PartitionReleasedError(f"partition {self.id} of {self.producer}: {reason}"), reason
        )

    def release(self) -> None:
        """Nobody needs the partition any more; consumers that still read it fail."""
        self.fail("the partition was released")

    # --- for those who look after it ----------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be written any more."""
        return self._failure or self._unsent

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has read all to the end."""
        return all(subpartition.is_consumed for subpartition in self.subpartitions)

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Be called, from any thread, when every consumer has read all."""
        self._on_consumed = callback
        if self.is_consumed:
            callback()

    def metrics(self) -> ChannelMetrics:
        """The sum over all subpartitions, with the time that the writer was held up."""
        total = ChannelMetrics()
        for subpartition in self.subpartitions:
            total += subpartition.metrics()
        with self.lock:
            since = self._full_since
            total.back_pressured_seconds = self._full_seconds
        if since is not None:
            total.back_pressured_seconds += self.clock.monotonic() - since
        return total

    # --- for subpartitions and views ----------------------------------------------------------

    def check(self) -> None:
        """For the writer."""
        failure = self.failure
        if failure is not None:
            raise failure

    def consumer_lost(self, failure: Exception) -> None:
        """A consumer is gone before it has read all."""
        self._end(failure, str(failure))

    def _end(self, failure: Exception, reason: str) -> None:
        views: list[SubpartitionView] = []
        with self.lock:
            if self._failure is not None or (self.is_consumed and not self.is_blocking):
                return
            self._failure = failure
            for subpartition in self.subpartitions:
                views += subpartition.discard()
            self.queued = self.full = 0
        for view in views:
            view.fail(f"{self.producer}: {reason}")
        self._changed()

    def flush_at(self, when: float) -> None:
        """The lock is held.  Something waits to be sent with more, at most until then."""
        if self._flush_at is None:
            self._flush_at = when
            self._timers.call_at(when, self._flush_due)

    def _flush_due(self) -> None:
        """A record that cannot be sent is told to the writer."""
        now = self.clock.monotonic()
        with self.lock:
            self._flush_at = None
            try:
                ready = [subpartition.finish_due(now) for subpartition in self.subpartitions]
            except (UnpicklableRecordsError, BatchTooLargeError) as error:
                self._unsent, ready = error, [self._on_change]
        for notify in ready:
            if notify is not None:
                notify()

    def attach(self, view: SubpartitionView, index: int) -> bool:
        """Let somebody read a subpartition; whether the view is to be notified.

        Raises:
            ConsumerLostError, PartitionReleasedError: it is not complete.
            ValueError: somebody else reads it, or there is no such subpartition.
        """
        if not 0 <= index < len(self.subpartitions):
            raise ValueError(f"partition {self.id} has no subpartition {index}")
        with self.lock:
            if self._failure is not None:
                raise self._failure
            return self.subpartitions[index].attach(view)

    def decode(self, buffer: Buffer) -> list[Element]:
        """The lock is held."""
        parts = buffer.parts
        data = pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))
        return self.encoder.decoder().decode(buffer.descriptions, data)

    def buffers_taken(self) -> None:
        """They have left: who waits for that goes on."""
        while self.settled:
            self.settled.popleft().tell()
        if self._full_since is not None and self.full <= 0 and self.queued < self._most_queued:
            self._changed()

    def subpartition_consumed(self) -> None:
        if self._on_consumed is not None and self.is_consumed:
            self._on_consumed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


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

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        """It passes all that waits: of a view that takes elements.  What is to be called then,
        without the lock."""

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
                waiting = self._take_signs()
                pieces = in_pieces(element, size)
                for piece in pieces:
                    part = size // len(pieces)
                    self._finish([*waiting, piece], part + _SIGN_SIZE * len(waiting))
                    waiting = []
            elif isinstance(element, EVENTS):
                self._finish_open()
                self._finish([element], 0)
            else:
                self._add(element, size)
            notify = self._ready()
        if notify is not None:
            notify()

    def put_first(self, barrier: Barrier) -> list[InFlight]:
        """Let a barrier overtake all that was not sent yet (unaligned checkpoints, ST-06); what it
        has overtaken, which belongs to the checkpoint and will be sent nevertheless.

        Raises what :meth:`put` does.
        """
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
        """Write a barrier that overtakes what is before it if :meth:`overtake` is called before it
        was sent.  Raises what :meth:`put` does."""
        self.partition.check()
        with self._lock:
            self._finish_open()
            buffer = self._new_buffer([waiting.barrier], 0)
            buffer.waiting = waiting
            self._buffers.append(buffer)
            notify = self._ready()
        if notify is not None:
            notify()

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
            view = self.view
            if view is not None and not view.is_remote:
                return bytes_of(element)  # these are never encoded
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

    def _take_signs(self) -> list[Element]:
        """Signs of time that wait, to be sent with the batch that follows them; records that wait
        are finished."""
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
        self._buffers.append(buffer)

    def _new_buffer(self, elements: Sequence[Element], size: int) -> Buffer:
        buffer = Buffer(elements, count_records(elements), size + OVERHEAD)
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

    def overtake(self, waiting: WaitingBarrier) -> list[Callable[[], None] | None]:
        """Let it overtake what is before it, if it is still there; what is to be called then,
        without the lock."""
        for place, buffer in enumerate(self._buffers):
            if buffer.waiting is waiting:
                waiting.leave(self.index, self._in_flight(place))
                del self._buffers[place]
                self._account(-buffer.size)
                return [self._overtake(replace(waiting.barrier, unaligned=True)), self._ready()]
        return []

    def _in_flight(self, count: int) -> list[InFlight]:
        """What is in the first so many buffers."""
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
        """Send it before all that waits, but for barriers that do so, too; what is to be called
        then, without the lock."""
        view = self.view
        if view is not None and not view.is_remote:
            return view.overtake(barrier)
        buffer = self._new_buffer([barrier], 0)
        buffer.is_urgent = True
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
        waiting = buffer.waiting
        if waiting is not None:
            waiting.leave(self.index, ())
            if waiting.is_settled:
                self.partition.settled.append(waiting)
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
