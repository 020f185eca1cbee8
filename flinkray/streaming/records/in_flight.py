"""Elements that the barrier of an unaligned checkpoint has overtaken, encoded or as objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    CancelledBarrier,
    Element,
    EndOfData,
    EndOfInput,
    WatermarkStatus,
)


class SchemaSource(Protocol):
    """Encoder or decoder of a channel's elements, which knows the channel's schemas."""

    def schema(self, number: int) -> pa.Schema:
        """Return the schema with this number, which was sent before. Thread-safe."""


class EncodedElements:
    """The encoded elements of one buffer, which a barrier has overtaken. Never changed.
    The elements may need schemas that were sent with an earlier buffer. If no overtaken buffer has
    such a schema, the checkpoint gets it from *source*, so that the elements can be decoded."""

    __slots__ = ("descriptions", "parts", "source")

    def __init__(
        self, descriptions: Sequence[Any], parts: Sequence[Any], source: SchemaSource
    ) -> None:
        self.descriptions = descriptions
        """Descriptions of elements (:mod:`flinkray.streaming.network.element_codec`)."""
        self.parts = parts
        """Data of the elements: bytes and other objects with the buffer protocol."""
        self.source = source


InFlight = Element | EncodedElements

Settled = Callable[[Mapping[int, Sequence[InFlight]]], None]
"""Called once, perhaps later and by another thread, with the elements that a barrier has overtaken
in the channels of a result, by channel."""


def given_again(elements: Sequence[Element]) -> list[Element]:
    """Return the restored elements of a channel without changes of its idle status.
    After a restore the writer is active but does not announce it, so a restored idle status would
    stay, and the channel's watermarks would be ignored."""
    return [element for element in elements if not isinstance(element, WatermarkStatus)]


def kept(elements: Sequence[InFlight]) -> list[InFlight]:
    """Return copies of the elements for a checkpoint. Operators will change the values of the
    originals. Barriers and ends are left out: their senders send them again."""
    return [
        element.owned() if isinstance(element, Block) else element
        for element in elements
        if not isinstance(element, Barrier | CancelledBarrier | EndOfData | EndOfInput)
    ]
