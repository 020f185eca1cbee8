"""Who takes buffers out of a subpartition: a connection's channel, or a task in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from flinkray.streaming.network.buffers import Buffer
from flinkray.streaming.network.errors import ConsumerLostError
from flinkray.streaming.network.frames import DATA, FAILED, SHARED_DATA, Part, head
from flinkray.streaming.network.queued_barrier import QueuedBarrier
from flinkray.streaming.network.result_partition import Subpartition
from flinkray.streaming.network.shared_memory import SHARED_FROM
from flinkray.streaming.records.elements import Barrier, Element, EndOfInput


class Sender(Protocol):
    """What a view needs of its connection."""

    def enqueue(self, view: RemoteView, is_first: bool) -> None:
        """The view has something to send, and waits for its turn; *is_first*: before others."""

    def send(self, frame: bytes) -> None:
        """Send a frame without body."""

    def share(self, parts: Sequence[Part], size: int) -> int | None:
        """Put a body into memory that both sides have; the region's number."""

    def forget_view(self, channel: int) -> None:
        """The view is over."""


class RemoteView:
    """Sends one subpartition to one channel of a consumer in another process, by its credit."""

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
        self._consumer = consumer
        self._sequence = 0
        self._is_waiting = False
        """For its turn at the connection."""
        self._is_event_next = False
        """Barriers and ends of input do not wait for what other channels send."""

    def becomes_ready(self) -> bool:
        if self._is_waiting or not self._can_send():
            return False
        self._is_waiting = True
        return True

    def notify(self) -> None:
        self._sender.enqueue(self, self._is_event_next)

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        raise AssertionError("what another process reads is sent in buffers")

    def _can_send(self) -> bool:
        buffer = self._subpartition.head(self)
        self._is_event_next = buffer is not None and buffer.is_event
        return buffer is not None and (buffer.is_event or self._credit > 0)

    def add_credit(self, size: int) -> None:
        """The consumer has taken so much, or can take so much more."""
        with self._lock:
            self._credit += size
            is_ready = self.becomes_ready()
        if is_ready:
            self.notify()

    def take(self, most: int) -> tuple[list[Part], int, bool, bool]:
        """Frames: one, and further ones until there are *most* bytes; none if what was to be sent
        was discarded meanwhile.  Their bytes, whether there can be another one at once, and whether
        that goes before those of others.  For the connection, when it is the view's turn."""
        subpartition = self._subpartition
        taken: list[tuple[Buffer, int, int]] = []
        total = 0
        with self._lock:
            again = self._can_send()
            while again and total < most:
                buffer = subpartition.pop(self)
                if not buffer.is_event:
                    self._credit -= buffer.size
                self._sequence += 1
                total += buffer.size
                taken.append((buffer, self._sequence, subpartition.queued))
                again = self._can_send()
            self._is_waiting = again
            is_first = self._is_event_next
        if taken:
            subpartition.partition.buffers_taken()
        frames: list[Part] = []
        for buffer, sequence, backlog in taken:
            header = self._channel, sequence, backlog, buffer.is_urgent, buffer.descriptions
            size = buffer.data_size
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

    def released(self, reason: str | None) -> None:
        """The consumer wants no more; None: it has read all."""
        if reason is None:
            self._subpartition.consumed(self)
        else:
            self.lost(reason)

    def lost(self, reason: str) -> None:
        """The consumer is gone."""
        producer = self._subpartition.partition.producer
        self._subpartition.lost(self, ConsumerLostError(producer, self._consumer, reason))


class LocalView:
    """Hands the elements of one subpartition to a task in the same process as they are."""

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
        """That come before all that waits."""

    def becomes_ready(self) -> bool:
        if self._is_listed:
            return False
        self._is_listed = True
        return True

    def notify(self) -> None:
        self._on_data()

    def overtake(self, barrier: Barrier) -> Callable[[], None]:
        queued = QueuedBarrier(barrier)
        self._barriers.append(queued)
        return partial(self._on_urgent, queued)

    def take(self) -> tuple[list[Element], int]:
        """The elements of the next buffer and its size in bytes; none: there is no buffer now, and
        ``on_data`` will be called for the next."""
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

    def fail(self, reason: str) -> None:
        self._on_failure(reason)

    def release(self, reason: str) -> None:
        """The consumer wants no more, although it has not read all."""
        producer = self._subpartition.partition.producer
        self._subpartition.lost(self, ConsumerLostError(producer, self._consumer, reason))
