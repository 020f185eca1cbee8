"""What a barrier of an unaligned checkpoint has overtaken: elements, or buffers as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from flinkray.streaming.records.elements import Barrier, Block, CancelledBarrier, Element


class SchemaSource(Protocol):
    """Who encodes for a channel, or decodes what comes in it."""

    def schema(self, number: int) -> pa.Schema:
        """One that was sent before.  From any thread."""


class EncodedElements:
    """The elements of one buffer of a channel, as they were encoded; never changed.

    It may refer to schemas that were sent with a buffer before it: *source* knows those that are
    not in another buffer that was overtaken with it.
    """

    __slots__ = ("descriptions", "parts", "source")

    def __init__(
        self, descriptions: Sequence[Any], parts: Sequence[Any], source: SchemaSource
    ) -> None:
        self.descriptions = descriptions
        """See :mod:`flinkray.streaming.network.element_codec`."""
        self.parts = parts
        """Bytes, and what else gives its memory out as bytes."""
        self.source = source


InFlight = Element | EncodedElements

Settled = Callable[[Mapping[int, Sequence[InFlight]]], None]
"""Called once, when it is known what a barrier has overtaken in the channels of a result that it
was sent to: by channel, for those in which there was something.  At once, but for a barrier that
overtakes what waits only if it has to wait too long: then maybe by another thread."""


def kept(elements: Sequence[InFlight]) -> list[InFlight]:
    """What belongs to a checkpoint, as it is now: operators, here or in other tasks, are going to
    change the values of the others.  Barriers of other checkpoints are no data."""
    return [
        element.owned() if isinstance(element, Block) else element
        for element in elements
        if not isinstance(element, Barrier | CancelledBarrier)
    ]
