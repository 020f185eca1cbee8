"""Buffers: what is sent as one, and waits as one when the consumer does not keep up."""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.streaming.network.element_codec import Description
from flinkray.streaming.network.frames import Part
from flinkray.streaming.records.elements import Barrier, CancelledBarrier, Element, EndOfInput

OVERHEAD = 256
"""Bytes that are counted for a buffer besides its data, so that many tiny ones are not free."""

EVENTS = (Barrier, CancelledBarrier, EndOfInput)
"""What travels in a buffer of its own, at once."""


class Buffer:
    """Some elements of one subpartition: as they are for a consumer in this process, or encoded."""

    __slots__ = ("descriptions", "elements", "is_event", "is_urgent", "parts", "records", "size")

    def __init__(self, elements: Sequence[Element], records: int, size: int) -> None:
        self.elements: Sequence[Element] | None = elements
        self.records = records
        self.size = size
        """Bytes, :data:`OVERHEAD` included; an estimate until it is encoded."""
        self.is_event = len(elements) == 1 and isinstance(elements[0], EVENTS)
        """It needs no credit."""
        self.is_urgent = False
        """It has overtaken others, and overtakes those that the consumer has not taken."""
        self.descriptions: Sequence[Description] = ()
        self.parts: Sequence[Part] = ()

    @property
    def is_encoded(self) -> bool:
        return self.elements is None

    @property
    def data_size(self) -> int:
        """Bytes of an encoded buffer's data."""
        return self.size - OVERHEAD
