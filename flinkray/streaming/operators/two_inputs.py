"""Operators with two inputs: connected streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flinkray.streaming.operators.basic import flatten
from flinkray.streaming.operators.operator import FunctionOperator, Receiver, StreamOperator
from flinkray.streaming.operators.process import (
    KeyedTimersOperator,
    RecordContext,
    TimeOnlyService,
    process_keyed_records,
    process_records,
)
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.watermark_valve import ValveOutput, WatermarkValve


class InputPort:
    """One of an operator's two inputs."""

    def __init__(self, operator: Any, number: int) -> None:
        self._operator = operator
        self._number = number
        self.process_block: Callable[[Block], None] = (
            operator.process_first if number == 0 else operator.process_second
        )

    def process_columns(self, columns: Columns) -> None:
        self.process_block(columns.to_block())

    def process_watermark(self, timestamp: int) -> None:
        self._operator.combine(self._operator.valve.watermark(self._number, timestamp))

    def process_status(self, idle: bool) -> None:
        self._operator.combine(self._operator.valve.status(self._number, idle))


class TwoInputs(StreamOperator):
    """Mixed into operators with two inputs: time is the lesser of the two."""

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        self.valve = WatermarkValve(2)

    def inputs(self) -> Sequence[Receiver]:
        return (InputPort(self, 0), InputPort(self, 1))

    def combine(self, result: ValveOutput) -> None:
        """Time of both inputs together advanced, or changed its status."""
        if result.watermark is not None:
            self.process_watermark(result.watermark)
        if result.idle is not None:
            self.process_status(result.idle)

    def process_first(self, block: Block) -> None:
        raise NotImplementedError

    def process_second(self, block: Block) -> None:
        raise NotImplementedError


class CoMapOperator(TwoInputs, FunctionOperator):
    """``map1`` and ``map2``; None is left out, as PyFlink does.

    With *keys* (one for each input) the function may use keyed state.
    """

    def __init__(self, function: Any, keys: tuple[Keys, Keys] | None = None) -> None:
        super().__init__(function)
        self._keys = keys

    def process_first(self, block: Block) -> None:
        self._process(self._without_none(self.function.map1), 0, block)

    def process_second(self, block: Block) -> None:
        self._process(self._without_none(self.function.map2), 1, block)

    @staticmethod
    def _without_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def one_or_none(value: Any) -> Any:
            result = function(value)
            return None if result is None else (result,)

        return one_or_none

    def _process(self, function: Callable[[Any], Any], side: int, block: Block) -> None:
        if self._keys is None:
            results, times = flatten(function, block)
        else:
            assert self.keyed_state is not None
            keys = self._keys[side].of_block(block)
            records = iter(block.values)
            results, times = process_keyed_records(
                lambda value, _: function(value),
                RecordContext(TimeOnlyService(self.context.time_service)),
                self.keyed_state.context,
                keys,
                block,
                records,
            )
        self.output.emit_results(results, times, block.origin)


class CoFlatMapOperator(CoMapOperator):
    """``flat_map1`` and ``flat_map2``."""

    def process_first(self, block: Block) -> None:
        self._process(self.function.flat_map1, 0, block)

    def process_second(self, block: Block) -> None:
        self._process(self.function.flat_map2, 1, block)


class CoProcessOperator(TwoInputs, FunctionOperator):
    """A co-process function on streams without keys."""

    def open(self) -> None:
        super().open()
        self._service = TimeOnlyService(self.context.time_service)
        self._record_context = RecordContext(self._service)

    def process_first(self, block: Block) -> None:
        self._process(self.function.process_element1, block)

    def process_second(self, block: Block) -> None:
        self._process(self.function.process_element2, block)

    def _process(self, function: Callable[[Any, Any], Any], block: Block) -> None:
        records = iter(block.values)
        out, times = process_records(function, self._record_context, block, records)
        self.output.emit_results(out, times, block.origin)

    def process_watermark(self, timestamp: int) -> None:
        self._service.watermark = timestamp
        self.output.emit_watermark(timestamp)


class KeyedCoProcessOperator(TwoInputs, KeyedTimersOperator):
    """A co-process function on keyed streams, which share state and timers."""

    def __init__(self, function: Any, keys1: Keys, keys2: Keys) -> None:
        super().__init__(function, keys1)
        self._keys2 = keys2

    def process_first(self, block: Block) -> None:
        self._process(self.function.process_element1, self.keys, block)

    def process_second(self, block: Block) -> None:
        self._process(self.function.process_element2, self._keys2, block)

    def _process(self, function: Callable[[Any, Any], Any], of: Keys, block: Block) -> None:
        keys = of.of_block(block)
        records = iter(block.values)
        out, times = process_keyed_records(
            function, self.record_context, self.key_context, keys, block, records
        )
        self.output.emit_results(out, times, block.origin)
