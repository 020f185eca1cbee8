"""Channels of an input gate: from another process, or from a task in the same process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flinkray.core.errors import FlinkRayError
from flinkray.rpc.wire import codec
from flinkray.streaming.network.buffers import OVERHEAD, QueuedBarrier, count_records
from flinkray.streaming.network.connection import Connection, ReceivingChannel
from flinkray.streaming.network.credit import FloatingCredit, ReceiverCredit
from flinkray.streaming.network.element_codec import (
    ElementDecoder,
    barrier_of,
    is_end_of_input,
    is_event,
)
from flinkray.streaming.network.errors import (
    PartitionUnavailableError,
    ProducerLostError,
    WireFormatError,
)
from flinkray.streaming.network.frames import CREDIT, PROCESSED, RELEASE, REQUEST, head
from flinkray.streaming.network.input_gate import NetworkInputGate
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.result_partition import PartitionRegistry, ResultPartition
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.network.views import LocalView
from flinkray.streaming.records.elements import Element
from flinkray.streaming.records.in_flight import EncodedElements, InFlight


class _Requests:
    """Computes the growing pauses between a channel's requests for a partition not found yet."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._initial = settings.request_backoff_initial
        self._longest = settings.request_backoff_max
        self._last: float | None = None

    def next_pause(self) -> float | None:
        """Return the seconds to wait before the next request; the pauses grow. None: the longest
        pause has passed, so give up."""
        if self._last is None:
            self._last = min(self._initial, self._longest)
        elif self._last < self._longest:
            self._last = min(2 * self._last, self._longest)
        else:
            return None
        return self._last


_Received = tuple[Any, pa.Buffer | None, int] | QueuedBarrier
"""A buffer as (descriptions, data, size in bytes), or a barrier that may overtake buffers."""


class RemoteInputChannel:
    """Receives a subpartition from a producer in another process.
    Received buffers stay encoded until the task takes them. Then the task's thread decodes them,
    and the producer gets new credit."""

    def __init__(
        self,
        gate: NetworkInputGate,
        partition_id: Any,
        subpartition: int,
        process_name: str,
        connect: Callable[[ReceivingChannel], tuple[Connection, int | None]],
        settings: NetworkSettings,
        floating: FloatingCredit,
        timers: Timers,
    ) -> None:
        self._gate = gate
        self._number = gate.add(self)
        self._partition_id = partition_id
        self._subpartition = subpartition
        self._process_name = process_name
        self._connect = connect
        self._settings = settings
        self._timers = timers
        self._requests = _Requests(settings)
        self.credit = ReceiverCredit(settings.exclusive_credit, floating)
        self._connection: Connection | None = None
        self._channel: int | None = None
        self._producer = f"the producer of partition {partition_id} in {process_name}"
        self._is_served = False
        self._is_processed = False
        self._is_released = False
        """Whether the producer was informed that this channel needs no more data."""
        self._is_closed = False
        self._sequence = 0
        self._received: deque[_Received] = deque()
        self._decoder = ElementDecoder()
        self._elements: deque[Element] = deque()
        self._taken = ChannelMetrics()

    # --- asking -------------------------------------------------------------------------------

    def request(self) -> None:
        """Request the subpartition.
        Connects to the producer's process first, if needed, and blocks for it. Raises
        RpcConnectionError: the producer's process is not running or refuses the connection."""
        self._connection, self._channel = self._connect(self)
        if self._channel is None:
            self.fail(str(self._connection.lost_reason))
            return
        self._send_request()

    def _send_request(self) -> None:
        if self._is_closed or self._is_served:
            return
        assert self._connection is not None
        self._connection.send(
            head(
                REQUEST,
                (
                    self._channel,
                    codec.encode(self._partition_id),
                    self._subpartition,
                    self._settings.exclusive_credit,
                    self._gate.consumer,
                ),
            )
        )

    def not_found(self) -> None:
        """Schedule another request, because the producer's process does not have the partition yet.
        After the last retry the gate fails with PartitionUnavailableError."""
        if self._is_served:
            return
        pause = self._requests.next_pause()
        if pause is None:
            self._gate.fail(
                PartitionUnavailableError(
                    self._gate.consumer, str(self._partition_id), self._process_name
                )
            )
        else:
            self._timers.call_at(self._timers.clock.monotonic() + pause, self._send_request)

    def accepted(self, producer: str) -> None:
        """Note that the producer *producer* (a name for errors) has accepted the request, so that
        the request is not repeated any more."""
        self._is_served = True
        self._producer = producer

    # --- receiving ----------------------------------------------------------------------------

    def received(
        self,
        sequence: int,
        backlog: int,
        is_urgent: bool,
        descriptions: Any,
        body: pa.Buffer | None,
    ) -> None:
        """Queue a buffer that has arrived.
        Raises WireFormatError: the buffer is not the next in sequence."""
        self._sequence += 1
        if sequence != self._sequence:
            raise WireFormatError(f"buffer {sequence} of a channel came, not {self._sequence}")
        queued = None if body is not None else _queued_barrier(descriptions, is_urgent)
        size = OVERHEAD + (0 if body is None else body.size)
        with self._gate.lock:
            if self._is_closed:
                return
            more = self.credit.on_received(size, backlog)
            self._received.append(queued or (descriptions, body, size))
        if self._is_processed and is_end_of_input(descriptions):
            # the task may be busy for long, and the producer must not wait for the task
            self._release(None)
        elif more:
            self._send_credit(more)
        if queued is None:
            self._gate.has_data(self._number)
        else:
            self._gate.barrier_came(self._number, queued)

    def fail(self, reason: str) -> None:
        """Make the whole gate fail, because the producer or the connection to it was lost."""
        if not self._is_closed:
            self._gate.fail(ProducerLostError(self._producer, self._gate.consumer, reason))

    # --- the task's ---------------------------------------------------------------------------

    def take(self) -> Element | None:
        elements = self._elements
        while not elements:
            if not self._received:
                return None
            self._take_next()
        return elements.popleft()

    def in_flight(self, barrier: QueuedBarrier) -> list[InFlight]:
        elements: list[InFlight] = list(self._elements)
        with self._gate.lock:
            received = list(self._received)
        for waiting in received[: received.index(barrier)]:
            if not isinstance(waiting, QueuedBarrier) and not is_event(waiting[0]):
                descriptions, body, _ = waiting
                elements.append(
                    EncodedElements(descriptions, () if body is None else (body,), self._decoder)
                )
        return elements

    def was_given(self, barrier: QueuedBarrier, before: QueuedBarrier | None) -> None:
        if before is not None and not before.is_reached:
            with self._gate.lock:
                self._received.remove(before)
        self._barrier_taken(barrier)

    def restore(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)

    def processed(self) -> None:
        assert self._connection is not None
        self._is_processed = True
        self._connection.send(head(PROCESSED, (self._channel,)))

    def _take_next(self) -> None:
        received = self._received.popleft()
        if isinstance(received, QueuedBarrier):
            barrier = received.reach()
            if barrier is not None:
                self._elements.append(barrier)
                self._barrier_taken(received)
            return
        descriptions, body, size = received
        elements = self._decoder.decode(descriptions, body)
        self._elements.extend(elements)
        taken = self._taken
        taken.records += count_records(elements)
        taken.bytes += size - OVERHEAD
        self._buffer_taken(size)

    def _barrier_taken(self, barrier: QueuedBarrier) -> None:
        self._buffer_taken(OVERHEAD, overtaking=barrier.was_urgent)

    def _buffer_taken(self, size: int, overtaking: bool = False) -> None:
        self._taken.buffers += 1
        with self._gate.lock:
            more = self.credit.on_taken(size)
        if (more or overtaking) and not (self._is_closed or self._is_released):
            self._send_credit(more, overtaking)

    def _send_credit(self, size: int, overtaking: bool = False) -> None:
        assert self._connection is not None
        self._connection.send(head(CREDIT, ((self._channel, size, int(overtaking)),)))

    def close(self, reason: str | None) -> None:
        with self._gate.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.credit.close()
            self._received.clear()
        self._elements.clear()
        self._release(reason)

    def _release(self, reason: str | None) -> None:
        if self._connection is None or self._channel is None or self._is_released:
            return
        self._is_released = True
        self._connection.remove_channel(self._channel)
        self._connection.send(head(RELEASE, (self._channel, reason)))

    def metrics(self) -> ChannelMetrics:
        taken = self._taken
        return ChannelMetrics(
            taken.bytes,
            taken.records,
            taken.buffers,
            self.credit.in_use,
            len(self._received),
        )


def _queued_barrier(descriptions: Any, is_urgent: bool) -> QueuedBarrier | None:
    barrier = barrier_of(descriptions)
    if barrier is None or not (is_urgent or barrier.overtakes_at is not None):
        return None
    return QueuedBarrier(barrier, is_urgent)


class LocalInputChannel:
    """Takes a subpartition from a producer in the same process. Nothing is encoded or copied."""

    def __init__(
        self,
        gate: NetworkInputGate,
        partition_id: Any,
        subpartition: int,
        registry: PartitionRegistry,
        settings: NetworkSettings,
        timers: Timers,
    ) -> None:
        self._gate = gate
        self._number = gate.add(self)
        self._partition_id = partition_id
        self._subpartition = subpartition
        self._registry = registry
        self._timers = timers
        self._requests = _Requests(settings)
        self._view: LocalView | None = None
        self._is_closed = False
        self._elements: deque[Element] = deque()
        self._taken = ChannelMetrics()

    def request(self) -> None:
        if not self._is_closed and not self._registry.request(
            self._partition_id, self, self._serve
        ):
            self._not_found()

    def _not_found(self) -> None:
        pause = self._requests.next_pause()
        if pause is not None:
            when = self._timers.clock.monotonic() + pause
            self._timers.call_at(when, self._look_again)
            return
        self._registry.withdraw(self)
        self._gate.fail(
            PartitionUnavailableError(self._gate.consumer, str(self._partition_id), "this process")
        )

    def _look_again(self) -> None:
        if self._view is None and not self._is_closed:
            self._not_found()

    def _serve(self, partition: ResultPartition) -> None:
        if self._is_closed:
            return
        producer = partition.producer

        def fail(reason: str) -> None:
            if not self._is_closed:
                self._gate.fail(ProducerLostError(producer, self._gate.consumer, reason))

        view = LocalView(
            partition.subpartitions[self._subpartition],
            self._gate.consumer,
            lambda: self._gate.has_data(self._number),
            lambda queued: self._gate.barrier_came(self._number, queued),
            fail,
        )
        self._view = view
        try:
            is_ready = partition.attach(view, self._subpartition)
        except (FlinkRayError, ValueError) as error:
            fail(str(error))
        else:
            if is_ready:
                view.notify()

    def take(self) -> Element | None:
        if not self._elements:
            if self._view is None:
                return None
            elements, size = self._view.take()
            if not elements:
                return None
            self._elements.extend(elements)
            self._taken.add_buffer(count_records(elements), size)
        return self._elements.popleft()

    def in_flight(self, barrier: QueuedBarrier) -> list[InFlight]:
        """Return the elements that wait in the channel: it has taken them from the subpartition,
        but the task has not taken them from the channel. They stay in the channel. All of them were
        sent before the barrier, since nothing is taken from the subpartition between the barrier's
        arrival and the task getting it."""
        return list(self._elements)

    def was_given(self, barrier: QueuedBarrier, before: QueuedBarrier | None) -> None:
        if before is not None and self._view is not None:
            self._view.forget(before)

    def restore(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)

    def processed(self) -> None:
        assert self._view is not None
        self._view.processed()

    def close(self, reason: str | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._elements.clear()
        if self._view is None:
            self._registry.withdraw(self)
        elif reason is not None:
            self._view.release(reason)

    def metrics(self) -> ChannelMetrics:
        taken = self._taken
        return ChannelMetrics(taken.bytes, taken.records, taken.buffers)
