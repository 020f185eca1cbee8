"""Map, flat map, filter and projection on streams without keys. Each call handles a batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, repeat
from typing import Any

from flinkray.core.values import IMMUTABLE
from flinkray.streaming.operators.collector import Collector
from flinkray.streaming.operators.operator import (
    FunctionOperator,
    OperatorContext,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row


class MapOperator(FunctionOperator):
    """Applies a map function: one result for each value."""

    def open(self) -> None:
        super().open()
        self._map = self.method("map")
        self._own = self.context.own

    def process_block(self, block: Block) -> None:
        function, own = self._map, self._own
        self.output.emit(
            block.with_values(
                [
                    result if type(result := function(value)) in IMMUTABLE else own(result)
                    for value in self.read(block)
                ]
            )
        )


class FilterOperator(FunctionOperator):
    """Keeps the values for which the filter function returns true."""

    def open(self) -> None:
        super().open()
        self._filter = self.method("filter")
        self._own = self.context.own

    def process_block(self, block: Block) -> None:
        function, own = self._filter, self._own
        emit_kept(
            self.output,
            block,
            [
                (value if type(value) in IMMUTABLE else own(value)) if function(value) else DROPPED
                for value in self.read(block)
            ],
        )


class _Dropped:
    __slots__ = ()


DROPPED: Any = _Dropped()
"""Stands in a list for a value that a filter has dropped."""


def emit_kept(output: Output, block: Block, values: list[Any]) -> None:
    """Put out *values* in place of the block's records, without those that are :data:`DROPPED`."""
    chosen = [value is not DROPPED for value in values]
    kept = list(compress(values, chosen))
    if kept:
        times = block.timestamps
        timestamps = None if times is None else list(compress(times, chosen))
        output.emit(Block(kept, timestamps, None, block.origin))


class FlatMapOperator(FunctionOperator):
    """Applies a flat-map function: any number of results for each value, side outputs included."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self.results = Collector(context, output)

    def open(self) -> None:
        super().open()
        self._flat_map = without_context(self.method("flat_map"))

    def process_block(self, block: Block) -> None:
        self.results.of_each(self._flat_map, self.read(block), block)


def without_context(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of a value and a context, which calls *function* with the value and ignores
    the context."""
    return lambda value, _: function(value)


class TagOperator(StreamOperator):
    """Replaces each value by the pair (number of its stream, value)."""

    def __init__(self, number: int) -> None:
        self._number = number

    def process_block(self, block: Block) -> None:
        self.output.emit(block.with_values(list(zip(repeat(self._number), block.values))))


class ProjectOperator(StreamOperator):
    """Selects fields of rows and tuples by position. Columns stay columns."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        self._positions = positions

    def process_block(self, block: Block) -> None:
        positions = self._positions
        results = [_project(value, positions) for value in self.read(block)]
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
