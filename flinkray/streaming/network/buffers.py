"""What waits in a channel: buffers of batches, merged and split to size, and barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flinkray.streaming.network.element_codec import Description
from flinkray.streaming.network.frames import Part
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfData,
    EndOfInput,
)
from flinkray.streaming.records.in_flight import InFlight, Settled

OVERHEAD = 256
"""Bytes counted per buffer in addition to its data, so that many tiny buffers are not free."""

EVENTS: Final = (Barrier, CancelledBarrier, EndOfData, EndOfInput)
"""Elements that are sent at once, each in its own buffer."""


class Buffer:
    """Elements of a subpartition that are sent together: encoded, or objects within a process."""

    __slots__ = (
        "descriptions", "elements", "is_event", "is_urgent", "parts", "records", "size", "waiting",
    )  # fmt: skip

    def __init__(self, elements: Sequence[Element], records: int, size: int) -> None:
        self.elements: Sequence[Element] | None = elements
        self.records = records
        self.size = size
        """Size in bytes, including :data:`OVERHEAD`. An estimate until the buffer is encoded."""
        self.is_event = len(elements) == 1 and isinstance(elements[0], EVENTS)
        """Whether the buffer holds an event, not data.
        An event is sent at once and no checkpoint stores it."""
        self.is_urgent = False
        """Whether the buffer's barrier has overtaken other buffers.
        The consumer takes this buffer before the buffers that it has not taken yet."""
        self.waiting: WaitingBarrier | None = None
        """The barrier in this buffer, if it may overtake other buffers after a time-out."""
        self.descriptions: Sequence[Description] = ()
        self.parts: Sequence[Part] = ()

    @property
    def data_size(self) -> int:
        """Bytes of data in an encoded buffer, without :data:`OVERHEAD`."""
        return self.size - OVERHEAD


def count_records(elements: Sequence[Element]) -> int:
    count = 0
    for element in elements:
        kind = type(element)
        if kind is Columns:
            count += element.batch.num_rows  # type: ignore[union-attr]
        elif kind is Block:
            count += len(element)  # type: ignore[arg-type]
    return count


class QueuedBarrier:
    """A barrier in the queue of a channel. Its position divides the elements that it overtakes from
    those sent later. The task gets the barrier only once: early, before the elements that it
    overtakes, or when the task reaches its position. Only the task's thread calls the methods."""

    __slots__ = ("_is_given", "barrier", "is_reached", "was_urgent")

    def __init__(self, barrier: Barrier, was_urgent: bool = False) -> None:
        self.barrier = barrier
        self.was_urgent = was_urgent
        """Whether the barrier has already overtaken buffers at its sender."""
        self.is_reached = False
        """Whether all elements that were sent before the barrier were taken."""
        self._is_given = False

    def give(self) -> Barrier | None:
        """Return the barrier, for the caller to pass to the task; None if this was done before."""
        if self._is_given:
            return None
        self._is_given = True
        return self.barrier

    def reach(self) -> Barrier | None:
        """Note that the task has taken all elements before the barrier. Returns the barrier, for
        the caller to pass to the task; None if this was done before."""
        self.is_reached = True
        return self.give()


class WaitingBarrier:
    """A barrier that was written to all subpartitions and may overtake buffers after a time-out.
    When each subpartition has sent it, *settled* is called with the overtaken elements. The
    partition's lock is held in all methods except :meth:`tell`."""

    def __init__(self, barrier: Barrier, subpartitions: int, settled: Settled) -> None:
        self.barrier = barrier
        self._left = subpartitions
        self._overtaken: dict[int, Sequence[InFlight]] = {}
        self._settled = settled

    @property
    def is_settled(self) -> bool:
        return not self._left

    def leave(self, subpartition: int, overtaken: Sequence[InFlight]) -> None:
        """Note that a subpartition has sent the barrier, before the elements *overtaken*."""
        self._left -= 1
        if overtaken:
            self._overtaken[subpartition] = overtaken

    def tell(self) -> None:
        """Call *settled* with the overtaken elements of each subpartition that has some."""
        self._settled(self._overtaken)


_SPLIT_ABOVE: Final = 16 * 2**20
"""Bytes. Larger batches are sent in pieces, so that other channels do not wait for long."""


def in_pieces(element: Element, size: int) -> list[Element]:
    """Return a batch of *size* bytes in pieces of about :data:`_SPLIT_ABOVE` bytes. Smaller
    batches, and elements that are no batches, are one piece."""
    if size <= _SPLIT_ABOVE or not isinstance(element, Block | Columns):
        return [element]
    rows = max(1, len(element) * _SPLIT_ABOVE // size)
    return [element.part(begin, begin + rows) for begin in range(0, len(element), rows)]


def in_halves(element: Element) -> list[Element]:
    """Return a batch of several records, which is too large to be sent, in two or more pieces."""
    return in_pieces(element, 2 * _SPLIT_ABOVE)
