"""Buffers: what is sent as one, and waits as one when the consumer does not keep up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flinkray.streaming.network.element_codec import Description
from flinkray.streaming.network.frames import Part
from flinkray.streaming.network.waiting_barrier import WaitingBarrier
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfInput,
)

OVERHEAD = 256
"""Bytes that are counted for a buffer besides its data, so that many tiny ones are not free."""

EVENTS: Final = (Barrier, CancelledBarrier, EndOfInput)
"""What travels in a buffer of its own, at once."""

_BATCHES: Final = (Block, Columns)


class Buffer:
    """Some elements of one subpartition: as they are for a consumer in this process, or encoded."""

    __slots__ = (
        "descriptions", "elements", "is_event", "is_urgent", "parts", "records", "size", "waiting",
    )  # fmt: skip

    def __init__(self, elements: Sequence[Element], records: int, size: int) -> None:
        self.elements: Sequence[Element] | None = elements
        self.records = records
        self.size = size
        """Bytes, :data:`OVERHEAD` included; an estimate until it is encoded."""
        self.is_event = len(elements) == 1 and isinstance(elements[0], EVENTS)
        """It needs no credit."""
        self.is_urgent = False
        """It has overtaken others, and overtakes those that the consumer has not taken."""
        self.waiting: WaitingBarrier | None = None
        """What it has, if that overtakes others when it has to wait too long."""
        self.descriptions: Sequence[Description] = ()
        self.parts: Sequence[Part] = ()

    @property
    def is_encoded(self) -> bool:
        return self.elements is None

    @property
    def data_size(self) -> int:
        """Bytes of an encoded buffer's data."""
        return self.size - OVERHEAD


def count_records(elements: Sequence[Element]) -> int:
    """Records in all batches among them."""
    count = 0
    for element in elements:
        if isinstance(element, _BATCHES):
            count += len(element)
    return count
