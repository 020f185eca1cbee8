"""A source that gives one value after the other, and nothing in between now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flinkray.core.clock import Clock
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SplitEnumerator,
)

PAUSE = "pause"
"""In place of a value: nothing now."""


class Part(NamedTuple):
    """Values that one subtask reads, and how many of them were read."""

    values: tuple[Any, ...]
    position: int = 0


class Trickle(Source[Any, Part]):
    """Values with timestamps that a function gives, if there is one.

    Args:
        parts: what is read together.
        gate: until this file is there, the values from the *held* one of each part on are not.
    """

    def __init__(
        self,
        parts: Iterable[Iterable[Any]],
        time_of: Callable[[Any], int] | None = None,
        gate: Path | None = None,
        held: int = 0,
    ) -> None:
        self._parts = [Part(tuple(values)) for values in parts]
        self.time_of = time_of
        self.gate = gate
        self.held = held

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Part], clock: Clock
    ) -> SplitEnumerator[Part]:
        return FixedSplitsEnumerator(context, self._parts)

    def create_reader(self, context: ReaderContext) -> _Reader:
        return _Reader(context, self)


class _Reader(SequentialReader[Part]):
    def __init__(self, context: ReaderContext, source: Trickle) -> None:
        super().__init__(context)
        self._source = source

    def open_split(self, split: Part) -> None:
        self._part = split

    def read(self, max_records: int) -> Polled:
        source, (values, position) = self._source, self._part
        if position >= source.held and source.gate is not None and not source.gate.exists():
            return NOTHING_NOW
        if position == len(values):
            return END_OF_INPUT
        self._part = Part(values, position + 1)
        value = values[position]
        if value == PAUSE:
            return NOTHING_NOW
        times: Sequence[int] | None = None if source.time_of is None else [source.time_of(value)]
        return Block([value], times)

    def remaining(self) -> Part:
        return self._part
