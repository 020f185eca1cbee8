"""Buffers: the unit that is sent, and that waits when the consumer does not keep up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flinkray.streaming.network.element_codec import Description
from flinkray.streaming.network.frames import Part
from flinkray.streaming.network.queued_barrier import WaitingBarrier
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfData,
    EndOfInput,
)

OVERHEAD = 256
"""Bytes counted per buffer in addition to its data, so that many tiny buffers are not free."""

EVENTS: Final = (Barrier, CancelledBarrier, EndOfData, EndOfInput)
"""Elements that are sent at once, each in its own buffer."""

_BATCHES: Final = (Block, Columns)


class Buffer:
    """Elements of one subpartition that are sent together.
    They are encoded, or objects if the consumer is in this process."""

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
    def is_encoded(self) -> bool:
        return self.elements is None

    @property
    def data_size(self) -> int:
        """Bytes of data in an encoded buffer, without :data:`OVERHEAD`."""
        return self.size - OVERHEAD


def count_records(elements: Sequence[Element]) -> int:
    """Return the number of records in all batches of *elements*."""
    count = 0
    for element in elements:
        if isinstance(element, _BATCHES):
            count += len(element)
    return count
