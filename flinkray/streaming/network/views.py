"""Consumers of a subpartition's buffers: a connection's channel, or a task in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from flinkray.streaming.network.buffers import OVERHEAD, Buffer, QueuedBarrier
from flinkray.streaming.network.element_codec import Encoded
from flinkray.streaming.network.errors import ConsumerLostError
from flinkray.streaming.network.frames import DATA, FAILED, SHARED_DATA, Part, head
from flinkray.streaming.network.shared_memory import SHARED_FROM
from flinkray.streaming.network.subpartition import Subpartition
from flinkray.streaming.records.elements import Barrier, Element, EndOfInput


class Sender(Protocol):
    """Interface of a connection, with which a :class:`RemoteView` sends its buffers."""

    def enqueue(self, view: RemoteView, is_first: bool) -> None:
        """Put the view into the queue of views with something to send. *is_first*: at its front."""

    def send(self, frame: bytes) -> None: ...

    def begin(self) -> bool:
        """Return whether nothing else waits to be sent, and no other thread sends. If so, the
        caller has to call :meth:`send_begun`; until then no other thread sends."""

    def send_begun(self, frames: list[Part]) -> None:
        """Send frames after :meth:`begin`, and all that was queued meanwhile."""

    def share(self, parts: Sequence[Part], size: int) -> int | None:
        """Copy a body to shared memory and return the region's number. None: use the socket."""

    def forget_view(self, channel: int) -> None: ...


class RemoteView:
    """Sends one subpartition to a channel of a consumer in another process.
    It sends as much as the channel's credit allows."""

    is_remote = True

    def __init__(
        self, subpartition: Subpartition, sender: Sender, channel: int, credit: int, consumer: str
    ) -> None:
        self.position = 0
        self._subpartition = subpartition
        self._lock = subpartition.partition.lock
        self._sender = sender
        self._channel = channel
        self._credit = credit
        """Bytes granted and not paid. Negative if the last buffers were larger than the credit."""
        self._overtaking = 0
        """Number of overtaking barriers that were sent and have not reached the task yet."""
        self._consumer = consumer
        self._sequence = 0
        self._is_waiting = False
        """Whether the view is queued for its turn at the connection."""
        self._is_event_next = False
        """Whether the next buffer is an event.
        Events are sent before the data of other channels."""

    def becomes_ready(self, buffer: Buffer) -> bool:
        if self._is_waiting or not self._can_send(buffer):
            return False
        self._is_waiting = True
        return True

    def notify(self) -> None:
        self._sender.enqueue(self, self._is_event_next)

    def pass_on(self, encoded: Encoded) -> Callable[[], None] | None:
        size = encoded.size
        if self._credit <= OVERHEAD or self._overtaking or size >= SHARED_FROM:
            return None
        header = self._channel, self._sequence + 1, 0, False, encoded.descriptions
        frames = [head(DATA, header, size), *encoded.parts]
        if not self._sender.begin():
            return None
        self._sequence += 1
        self._credit -= OVERHEAD + size
        return partial(self._sender.send_begun, frames)

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        raise AssertionError("what another process reads is sent in buffers")

    def _can_send(self, buffer: Buffer) -> bool:
        self._is_event_next = buffer.is_event
        if self._overtaking:
            return self._credit > 0
        return buffer.is_urgent or self._credit > OVERHEAD

    @property
    def credit(self) -> int:
        """The bytes that may be sent now; negative if more was sent than was granted."""
        return self._credit

    def _pay(self, buffer: Buffer) -> None:
        self._credit -= buffer.size
        self._overtaking += buffer.is_urgent

    def add_credit(self, size: int, overtaking: int) -> None:
        """Add *size* bytes to the credit for sending.
        *overtaking*: number of barriers that overtook buffers and have reached the task now."""
        with self._lock:
            self._credit += size
            self._overtaking -= overtaking
            buffer = self._subpartition.head(self)
            is_ready = buffer is not None and self.becomes_ready(buffer)
        if is_ready:
            self.notify()

    def take(self, most: int) -> tuple[list[Part], int, bool, bool]:
        """Take a buffer, and more of them until *most* bytes are reached. Returns (frames, bytes,
        whether another buffer can be sent at once, whether that buffer is sent before those of
        other channels). There are no frames if the buffers were discarded meanwhile."""
        subpartition = self._subpartition
        taken: list[tuple[Buffer, int, int]] = []
        total = 0
        with self._lock:
            buffer = subpartition.head(self)
            while (again := buffer is not None and self._can_send(buffer)) and total < most:
                buffer = subpartition.pop(self)
                self._pay(buffer)
                self._sequence += 1
                total += buffer.size
                taken.append((buffer, self._sequence, subpartition.queued))
                buffer = subpartition.head(self)
            self._is_waiting = again
            is_first = self._is_event_next
        if taken:
            subpartition.partition.buffers_taken()
        frames: list[Part] = []
        for buffer, sequence, backlog in taken:
            header = self._channel, sequence, backlog, buffer.is_urgent, buffer.descriptions
            size = buffer.size - OVERHEAD
            region = self._sender.share(buffer.parts, size) if size >= SHARED_FROM else None
            if region is None:
                frames.append(head(DATA, header, size))
                frames += buffer.parts
            else:
                frames.append(head(SHARED_DATA, (*header, region, size)))
        return frames, total, again, is_first

    def fail(self, reason: str) -> None:
        self._sender.forget_view(self._channel)
        self._sender.send(head(FAILED, (self._channel, reason)))

    def processed(self) -> None:
        self._subpartition.processed()

    def released(self, reason: str | None) -> None:
        """Detach the view, because the consumer has received everything (*reason* None). With a
        *reason* the consumer does not want the rest; then as :meth:`lost`."""
        if reason is None:
            self._subpartition.consumed(self)
        else:
            self.lost(reason)

    def lost(self, reason: str) -> None:
        """Tell the subpartition that its consumer, or the connection, was lost. A pipelined
        partition then fails; the result of a batch job stays for another consumer."""
        producer = self._subpartition.partition.producer
        self._subpartition.lost(self, ConsumerLostError(producer, self._consumer, reason))


class LocalView:
    """Hands the elements of a subpartition to a task in this process, without encoding them."""

    is_remote = False

    def __init__(
        self,
        subpartition: Subpartition,
        consumer: str,
        on_data: Callable[[], None],
        on_urgent: Callable[[QueuedBarrier], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.position = 0
        self._subpartition = subpartition
        self._lock = subpartition.partition.lock
        self._consumer = consumer
        self._on_data = on_data
        self._on_urgent = on_urgent
        self._on_failure = on_failure
        self._is_listed = False
        self._barriers: deque[QueuedBarrier] = deque()
        """Barriers that the task gets before all waiting buffers."""

    def becomes_ready(self, buffer: Buffer) -> bool:
        if self._is_listed:
            return False
        self._is_listed = True
        return True

    def notify(self) -> None:
        self._on_data()

    def pass_on(self, encoded: Encoded) -> Callable[[], None] | None:
        raise AssertionError("what a task in this process reads is not encoded")

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        queued = QueuedBarrier(barrier)
        self._barriers.append(queued)
        return partial(self._on_urgent, queued)

    def forget(self, barrier: QueuedBarrier) -> None:
        """Forget the position of a barrier in the queue, because the task has got a later barrier
        early."""
        with self._lock:
            if not barrier.is_reached:
                self._barriers.remove(barrier)

    def take(self) -> tuple[list[Element], int]:
        """Return (elements of the next buffer, its size in bytes). If the list is empty, there is
        no buffer now; ``on_data`` is called when the next one is ready."""
        subpartition = self._subpartition
        with self._lock:
            while self._barriers:
                barrier = self._barriers.popleft().reach()
                if barrier is not None:
                    return [barrier], 0
            if subpartition.head(self) is None:
                self._is_listed = False
                return [], 0
            buffer = subpartition.pop(self)
            if buffer.elements is None:
                elements = subpartition.partition.decode(buffer)
            else:
                elements = list(buffer.elements)
        subpartition.partition.buffers_taken()
        if buffer.is_event and isinstance(elements[0], EndOfInput):
            subpartition.consumed(self)
        return elements, buffer.data_size

    def processed(self) -> None:
        self._subpartition.processed()

    def fail(self, reason: str) -> None:
        self._on_failure(reason)

    def release(self, reason: str) -> None:
        """Tell the subpartition that its consumer does not want the rest of the data. A pipelined
        partition then fails; the result of a batch job stays for another consumer."""
        producer = self._subpartition.partition.producer
        self._subpartition.lost(self, ConsumerLostError(producer, self._consumer, reason))
