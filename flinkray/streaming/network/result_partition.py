"""The producing end: what a task writes, divided into one subpartition for each consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkray.streaming.errors import UnpicklableRecordsError
from flinkray.streaming.network.buffers import Buffer
from flinkray.streaming.network.element_codec import ElementEncoder
from flinkray.streaming.network.errors import BatchTooLargeError, PartitionReleasedError
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.subpartition import Subpartition, SubpartitionView
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import Element


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
        """Estimated bytes of a record that has no Arrow type; follows what was encoded."""
        self.queued = 0
        """Bytes of finished buffers that wait, in all subpartitions."""
        self.full = 0
        """Subpartitions that have as much waiting as they may."""
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

    def notify_room(self) -> None:
        """A buffer has left: who waits for that goes on."""
        if self._full_since is not None and self.full <= 0 and self.queued < self._most_queued:
            self._changed()

    def subpartition_consumed(self) -> None:
        if self._on_consumed is not None and self.is_consumed:
            self._on_consumed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()
