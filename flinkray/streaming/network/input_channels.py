"""Channels of a gate: from another process, or from a task in this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flinkray.core.errors import FlinkRayError
from flinkray.rpc.wire import codec
from flinkray.streaming.network.buffers import OVERHEAD, count_records
from flinkray.streaming.network.connection import Connection, ReceivingChannel
from flinkray.streaming.network.credit import FloatingCredit, ReceiverCredit
from flinkray.streaming.network.element_codec import ElementDecoder, barrier_of, is_event
from flinkray.streaming.network.errors import (
    PartitionUnavailableError,
    ProducerLostError,
    WireFormatError,
)
from flinkray.streaming.network.frames import CREDIT, RELEASE, REQUEST, head
from flinkray.streaming.network.input_gate import NetworkInputGate
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.partitions import PartitionRegistry
from flinkray.streaming.network.queued_barrier import QueuedBarrier
from flinkray.streaming.network.result_partition import ResultPartition
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.network.views import LocalView
from flinkray.streaming.records.elements import Element
from flinkray.streaming.records.in_flight import EncodedElements, InFlight


class _Requests:
    """When to ask again for a partition that was not found."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._initial = settings.request_backoff_initial
        self._longest = settings.request_backoff_max
        self._last: float | None = None

    def next_pause(self) -> float | None:
        """Seconds; None: it was asked often enough."""
        if self._last is None:
            self._last = min(self._initial, self._longest)
        elif self._last < self._longest:
            self._last = min(2 * self._last, self._longest)
        else:
            return None
        return self._last


_Received = tuple[Any, pa.Buffer | None, int] | QueuedBarrier
"""A buffer: descriptions, data and size in bytes; or a barrier that may overtake others."""


class RemoteInputChannel:
    """Receives a subpartition from a producer in another process.

    What was received stays as it came until the task takes it; that is when it is decoded, by the
    task's thread, and when the producer gets new credit.
    """

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
        self._credit = ReceiverCredit(settings.exclusive_credit, floating)
        self._connection: Connection | None = None
        self._channel: int | None = None
        self._producer = f"the producer of partition {partition_id} in {process_name}"
        self._is_served = False
        self._is_closed = False
        self._sequence = 0
        self._received: deque[_Received] = deque()
        self._decoder = ElementDecoder()
        self._elements: deque[Element] = deque()
        self._taken = ChannelMetrics()

    # --- asking -------------------------------------------------------------------------------

    def request(self) -> None:
        """Connects, if need be, and waits for that.

        Raises:
            RpcConnectionError: the producer's process is not there, or refuses.
        """
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
        """The process does not have the partition; it may come."""
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
        """The producer is known by name."""
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
        """A buffer has come.

        Raises:
            WireFormatError: not the next one.
        """
        self._sequence += 1
        if sequence != self._sequence:
            raise WireFormatError(f"buffer {sequence} of a channel came, not {self._sequence}")
        queued = None if body is not None else _queued_barrier(descriptions, is_urgent)
        size = OVERHEAD + (0 if body is None else body.size)
        with self._gate.lock:
            more = self._credit.on_received(size, backlog)
            self._received.append(queued or (descriptions, body, size))
        if more:
            self._send_credit(more)
        if queued is None:
            self._gate.has_data(self._number)
        else:
            self._gate.barrier_came(self._number, queued)

    def fail(self, reason: str) -> None:
        """The producer or the connection to it is gone."""
        if not self._is_closed:
            self._gate.fail(ProducerLostError(self._producer, self._gate.consumer, reason))

    # --- the task's ---------------------------------------------------------------------------

    def take(self) -> Element | None:
        while not self._elements:
            if not self._received:
                return None
            self._take_next()
        return self._elements.popleft()

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

    def restore(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)

    def _take_next(self) -> None:
        received = self._received.popleft()
        if isinstance(received, QueuedBarrier):
            barrier = received.reach()
            elements: list[Element] = [] if barrier is None else [barrier]
            size = OVERHEAD
        else:
            descriptions, body, size = received
            elements = self._decoder.decode(descriptions, body)
        self._elements.extend(elements)
        with self._gate.lock:
            more = self._credit.on_taken(size)
        if more and not self._is_closed:
            self._send_credit(more)
        self._taken.add_buffer(count_records(elements), size - OVERHEAD)

    def _send_credit(self, size: int) -> None:
        assert self._connection is not None
        self._connection.send(head(CREDIT, ((self._channel, size),)))

    def close(self, reason: str | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with self._gate.lock:
            self._credit.close()
        self._received.clear()
        self._elements.clear()
        if self._connection is not None and self._channel is not None:
            self._connection.remove_channel(self._channel)
            self._connection.send(head(RELEASE, (self._channel, reason)))

    def metrics(self) -> ChannelMetrics:
        taken = self._taken
        return ChannelMetrics(
            taken.bytes,
            taken.records,
            taken.buffers,
            self._credit.in_use,
            len(self._received),
        )


def _queued_barrier(descriptions: Any, is_urgent: bool) -> QueuedBarrier | None:
    """None: it is no barrier, or one that stays in line."""
    barrier = barrier_of(descriptions)
    if barrier is None or not (is_urgent or barrier.overtakes_at is not None):
        return None
    return QueuedBarrier(barrier)


class LocalInputChannel:
    """Takes a subpartition from a producer in the same process: nothing is encoded or copied."""

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
        """What was taken out of the subpartition and not by the task: nothing is taken out of it
        after the barrier before the task has that."""
        return list(self._elements)

    def restore(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)

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
