"""Map, flat map, filter and projection: one record at a time, a batch per call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, repeat
from typing import Any

from flinkray.streaming.operators.operator import FunctionOperator, StreamOperator
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row


class MapOperator(FunctionOperator):
    """One value for each value."""

    def process_block(self, block: Block) -> None:
        function = self._map
        records = iter(block.values)
        results = [function(value) for value in records]
        self.output.emit(Block(results, block.timestamps, None, block.origin))

    def open(self) -> None:
        super().open()
        self._map = self.method("map")


class FilterOperator(FunctionOperator):
    """Keeps some values."""

    def open(self) -> None:
        super().open()
        self._filter = self.method("filter")

    def process_block(self, block: Block) -> None:
        function = self._filter
        records = iter(block.values)
        if block.timestamps is None and block.keys is None:
            kept = [value for value in records if function(value)]
            if kept:
                self.output.emit(Block(kept, None, None, block.origin))
        else:
            self._emit_kept(block, [function(value) for value in records])

    def _emit_kept(self, block: Block, chosen: list[Any]) -> None:
        values = list(compress(block.values, chosen))
        if values:
            times = block.timestamps
            timestamps = None if times is None else list(compress(times, chosen))
            self.output.emit(Block(values, timestamps, None, block.origin))


class FlatMapOperator(FunctionOperator):
    """Any number of values for each value, side outputs included."""

    def open(self) -> None:
        super().open()
        self._flat_map = self.method("flat_map")

    def process_block(self, block: Block) -> None:
        results, timestamps = flatten(self._flat_map, block)
        self.output.emit_results(results, timestamps, block.origin)


def flatten(
    function: Callable[[Any], Iterable[Any] | None], block: Block
) -> tuple[list[Any], list[int] | None]:
    """All results of *function*, each with its record's timestamp."""
    out: list[Any] = []
    extend = out.extend
    records = iter(block.values)
    if block.timestamps is None:
        for value in records:
            results = function(value)
            if results is not None:
                extend(results)
        return out, None
    times: list[int] = []
    count = 0
    for value, timestamp in zip(records, block.timestamps, strict=True):
        results = function(value)
        if results is not None:
            extend(results)
            added = len(out) - count
            if added:
                times.extend(repeat(timestamp, added))
                count += added
    return out, times


class ProjectOperator(StreamOperator):
    """Some fields of rows and tuples, by position; columns stay columns."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        self._positions = positions

    def process_block(self, block: Block) -> None:
        positions = self._positions
        records = iter(block.values)
        results = [_project(value, positions) for value in records]
        self.output.emit(block.with_values(results))

    def process_columns(self, columns: Columns) -> None:
        batch = columns.batch.select(list(self._positions))
        self.output.emit_columns(Columns(batch, columns.timestamps, columns.origin))


def _project(value: Any, positions: tuple[int, ...]) -> Any:
    picked = [value[position] for position in positions]
    if isinstance(value, Row):
        names = value._fields
        return Row.of(None if names is None else [names[place] for place in positions], picked)
    return tuple(picked)
