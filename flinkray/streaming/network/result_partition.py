"""The producing end: a task's output with one subpartition per consumer, its writer, and the
registry of a process in which consumers find partitions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from flinkray.streaming.channels import RecordWriter
from flinkray.streaming.errors import UnpicklableRecordsError
from flinkray.streaming.network.buffers import Buffer, WaitingBarrier
from flinkray.streaming.network.element_codec import ElementEncoder
from flinkray.streaming.network.errors import BatchTooLargeError, PartitionReleasedError
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.subpartition import Subpartition, SubpartitionView
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import (
    END_OF_DATA,
    END_OF_INPUT,
    Barrier,
    Block,
    Columns,
    Element,
)
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.records.partitioners import StreamPartitioner


class ResultPartition:
    """The pipelined output of one subtask for the consumers of one edge: consumers read it while
    one thread writes it. Elements wait in a subpartition until its consumer has credit.
    *partition_id* must be hashable, and encodable in a message. *buffer_timeout*: most seconds that
    a record waits to be sent together with others. 0: no record waits. None: records wait until a
    segment is full."""

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
        """Estimated bytes of a record that has no Arrow type and is sent to another process.
        The estimate is adapted to the size of encoded records."""
        self.queued = 0
        """Bytes of finished buffers that wait, in all subpartitions."""
        self.full = 0
        """Number of subpartitions that have reached their limit of waiting bytes."""
        self.settled: deque[WaitingBarrier] = deque()
        """Barriers that all subpartitions have sent and that are still to be reported."""
        self._timers = timers
        self._most_queued = subpartitions * settings.exclusive_credit + settings.floating_credit
        self._flush_at: float | None = None
        self._full_since: float | None = None
        self._full_seconds = 0.0
        self._failure: Exception | None = None
        self._unsent: Exception | None = None
        """Error of records that a timer could not send. The writer's next call raises it."""
        self._on_change: Callable[[], None] | None = None
        self._on_consumed: Callable[[], None] | None = None
        self.subpartitions: tuple[Subpartition, ...] = self._make(subpartitions)
        """Channels for a :class:`~flinkray.streaming.channels.RecordWriter`."""

    def _make(self, count: int) -> tuple[Subpartition, ...]:
        return tuple(Subpartition(self, index) for index in range(count))

    # --- for the writer -----------------------------------------------------------------------

    def has_room(self) -> bool:
        """Return whether the writer may write on: less data waits for the consumers than the limit
        allows. Raises ConsumerLostError, PartitionReleasedError: the output can no longer be read.
        """
        if self._failure is not None or self._unsent is not None:
            self.check()
        has_room = self.full <= 0 and self.queued < self._most_queued
        if has_room:
            if self._full_since is not None:
                self._note_room()
        elif self._full_since is None:
            with self.lock:
                self._full_since = self.clock.monotonic()
            return self.has_room()  # check again: buffers taken in the meantime did not call back
        return has_room

    def _note_room(self) -> None:
        with self.lock:
            if self._full_since is not None:
                self._full_seconds += self.clock.monotonic() - self._full_since
                self._full_since = None

    def restore(self, subpartition: int, elements: Sequence[Element]) -> None:
        """Send the elements of a subpartition that a checkpoint barrier had overtaken before the
        restart, as restored from the checkpoint. Call this before anything is written. Raises the
        errors of :meth:`Subpartition.put`."""
        for element in elements:
            self.subpartitions[subpartition].put(element)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Send a barrier to all consumers. *settled* is called, at once or later, with the elements
        that the barrier has overtaken, by subpartition. Raises the errors of
        :meth:`Subpartition.put`."""
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
        """Return the seconds until the barrier overtakes waiting buffers. None: never."""
        overtakes_at = barrier.overtakes_at
        return None if overtakes_at is None else overtakes_at / 1000 - self.clock.time()

    def _overtake(self, waiting: WaitingBarrier) -> None:
        """Send a barrier before the buffers that wait in front of it, because its alignment
        time-out has passed (ST-08). Overtaken elements may have to be copied for the checkpoint. If
        the copy fails, the next call of the writer raises the error."""
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
            waiting.tell()  # before the consumers have the barrier, and may come to their ends
        for callback in notify:
            if callback is not None:
                callback()

    def flush(self) -> None:
        """Send all elements that wait in buffers for others to be sent with them."""
        for subpartition in self.subpartitions:
            subpartition.flush()

    def end_of_data(self) -> None:
        """Tell all consumers that only barriers follow. Raises the errors of
        :meth:`Subpartition.put`."""
        for subpartition in self.subpartitions:
            subpartition.put(END_OF_DATA)

    def end_of_input(self) -> None:
        """Tell all consumers that nothing follows. Raises the errors of
        :meth:`Subpartition.put`."""
        for subpartition in self.subpartitions:
            subpartition.put(END_OF_INPUT)
            subpartition.hand_over()

    def listen(self, callback: Callable[[], None]) -> None:
        """Register a callback for changes that the writer waits for.
        It is called when there may be room again, when all data was processed, or when writing
        has become useless. It may run in any thread and must not block."""
        self._on_change = callback

    def fail(self, reason: str) -> None:
        """Make the consumers fail with *reason*, because the task has failed or was cancelled."""
        self._end(
            PartitionReleasedError(f"partition {self.id} of {self.producer}: {reason}"), reason
        )

    def release(self) -> None:
        """Free the data of the partition. Consumers that still read it fail."""
        self.fail("the partition was released")

    # --- for the owner of the partition -------------------------------------------------------

    @property
    def failure(self) -> Exception | None:
        """The error because of which nothing can be written any more; None: there is none."""
        return self._failure or self._unsent

    @property
    def is_processed(self) -> bool:
        """Whether every consumer has processed all data.
        Raises ConsumerLostError, PartitionReleasedError: a consumer will never process all data."""
        self.check()
        return all(subpartition.is_processed for subpartition in self.subpartitions)

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has read everything, so that the producer's process is not needed
        any more."""
        return all(subpartition.is_consumed for subpartition in self.subpartitions)

    def on_consumed(self, callback: Callable[[], None]) -> None:
        """Register a callback for when every consumer has read everything.
        It may run in any thread."""
        self._on_consumed = callback
        if self.is_consumed:
            callback()

    def metrics(self) -> ChannelMetrics:
        """Return the metrics of all subpartitions, added up, and the time the writer waited."""
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
        """Raise :attr:`failure`, if there is one. The writer calls this."""
        if self._failure is not None or self._unsent is not None:
            raise self._failure or self._unsent  # type: ignore[misc]  # one of them is an error

    def consumer_lost(self, failure: Exception) -> None:
        """Fail the partition with *failure*: a consumer was lost before it had read everything."""
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
        """Send waiting elements at *when* (monotonic seconds) at the latest. The lock is held."""
        if self._flush_at is None:
            self._flush_at = when
            self._timers.call_at(when, self._flush_due)

    def _flush_due(self) -> None:
        """Send the elements that have waited for the buffer time-out.
        If a record cannot be sent, the next call of the writer raises the error."""
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
        """Make *view* the reader of a subpartition. Returns whether there is data already, so that
        the caller has to call the view's ``notify``. Raises the partition's failure, or ValueError:
        the subpartition has another reader, or does not exist."""
        if not 0 <= index < len(self.subpartitions):
            raise ValueError(f"partition {self.id} has no subpartition {index}")
        with self.lock:
            if self._failure is not None:
                raise self._failure
            return self.subpartitions[index].attach(view)

    def decode(self, buffer: Buffer) -> list[Element]:
        """Return the elements of an encoded buffer of this partition. The lock is held."""
        parts = buffer.parts
        data = pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))
        return self.encoder.decoder().decode(buffer.descriptions, data)

    def buffers_taken(self) -> None:
        """Report barriers that all subpartitions have sent, and wake the writer if there is room.
        Called after a view has taken buffers, perhaps by several threads at once."""
        while self.settled:
            with self.lock:
                waiting = self.settled.popleft() if self.settled else None
            if waiting is not None:
                waiting.tell()
        if self._full_since is not None and self.full <= 0 and self.queued < self._most_queued:
            self._changed()

    def subpartition_processed(self) -> None:
        if all(subpartition.is_processed for subpartition in self.subpartitions):
            self._changed()

    def subpartition_consumed(self) -> None:
        if self._on_consumed is not None and self.is_consumed:
            self._on_consumed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


class PartitionWriter(RecordWriter):
    """Divides batches among the subpartitions of a partition.
    The subpartitions merge small batches, by size and buffer time-out."""

    def __init__(self, partition: ResultPartition, partitioner: StreamPartitioner) -> None:
        super().__init__(partition.subpartitions, partitioner)
        self.partition = partition
        self._puts = [subpartition.put for subpartition in partition.subpartitions]

    def has_room(self) -> bool:
        return self.partition.has_room()

    def process_block(self, block: Block) -> None:
        for channel, part in self.partitioner.split_block(block):
            self._puts[channel](part)

    def process_columns(self, columns: Columns) -> None:
        for channel, part in self.partitioner.split_columns(columns):
            self._puts[channel](part)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        self.partition.barrier(barrier, settled)

    def end_of_data(self) -> None:
        self.partition.end_of_data()

    def is_processed(self) -> bool:
        return self.partition.is_processed

    def end_of_input(self) -> None:
        self.partition.end_of_input()


Serve = Callable[[ResultPartition], None]


class PartitionRegistry:
    """Keeps the partitions of a process by id, and consumers' requests for partitions that do not
    exist yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[Any, ResultPartition] = {}
        self._waiting: dict[Any, dict[Hashable, Serve]] = {}

    def add(self, partition: ResultPartition) -> None:
        """Add a partition and serve the consumers that wait for it.
        Raises ValueError: a partition with this id exists."""
        with self._lock:
            if partition.id in self._partitions:
                raise ValueError(f"partition {partition.id} is there already")
            self._partitions[partition.id] = partition
            waiting = self._waiting.pop(partition.id, {})
        for serve in waiting.values():
            serve(partition)

    def remove(self, partition: ResultPartition) -> None:
        with self._lock:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]

    def request(self, partition_id: Any, who: Hashable, serve: Serve) -> bool:
        """Call *serve* with the partition: now if it exists, else when it is added. Returns whether
        *serve* was called now. *who*: the consumer, for :meth:`withdraw`."""
        with self._lock:
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._waiting.setdefault(partition_id, {})[who] = serve
                return False
        serve(partition)
        return True

    def withdraw(self, who: Hashable) -> None:
        """Cancel the pending requests of the consumer *who*, as given to :meth:`request`."""
        self._withdraw(lambda waiting: waiting == who)

    def withdraw_all(self, connection: object) -> None:
        self._withdraw(lambda waiting: isinstance(waiting, tuple) and waiting[0] is connection)

    def _withdraw(self, is_meant: Callable[[Hashable], bool]) -> None:
        with self._lock:
            for partition_id, waiting in tuple(self._waiting.items()):
                for who in [who for who in waiting if is_meant(who)]:
                    del waiting[who]
                if not waiting:
                    del self._waiting[partition_id]

    def all(self) -> list[ResultPartition]:
        with self._lock:
            return list(self._partitions.values())
