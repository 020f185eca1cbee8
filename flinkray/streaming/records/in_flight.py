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
    """Interface of the encoder or decoder of a channel's elements, which knows the schemas that
    were sent in the channel."""

    def schema(self, number: int) -> pa.Schema:
        """Return the schema *number*, which was sent in the channel before. Thread-safe."""


class EncodedElements:
    """The elements of one encoded buffer that a barrier has overtaken. Never changed.
    Elements may need schemas that were sent with an earlier buffer. If no overtaken buffer has such
    a schema, it is stored with the checkpoint, too, and taken from *source*."""

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
    """Return the restored elements of a channel, to be given to the task, without changes of the
    idle status. After a restore every channel counts as active, and its writer does not announce
    that. A restored idle status would stay, and the channel's watermarks would be ignored."""
    return [element for element in elements if not isinstance(element, WatermarkStatus)]


def kept(elements: Sequence[InFlight]) -> list[InFlight]:
    """Return copies of overtaken elements, to be stored with a checkpoint, because operators will
    change the values of the originals. Barriers and ends are left out: their senders send them
    again after a restore."""
    return [
        element.owned() if isinstance(element, Block) else element
        for element in elements
        if not isinstance(element, Barrier | CancelledBarrier | EndOfData | EndOfInput)
    ]
