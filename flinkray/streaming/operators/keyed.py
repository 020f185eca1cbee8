"""Map, flat map, filter and reduce on keyed streams: the same, with the key set for each record."""

from __future__ import annotations

from itertools import compress, repeat
from typing import Any

from flinkray.state.descriptors import ReducingStateDescriptor
from flinkray.streaming.operators.operator import FunctionOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys


class KeyedFunctionOperator(FunctionOperator):
    """An operator whose function may use keyed state."""

    def __init__(self, function: Any, keys: Keys) -> None:
        super().__init__(function)
        self.keys = keys

    def open(self) -> None:
        super().open()
        assert self.keyed_state is not None
        self.key_context = self.keyed_state.context


class KeyedMapOperator(KeyedFunctionOperator):
    """One value for each value."""

    def open(self) -> None:
        super().open()
        self._map = self.method("map")

    def process_block(self, block: Block) -> None:
        function, context = self._map, self.key_context
        keys = self.keys.of_block(block)
        records = iter(block.values)
        results: list[Any] = []
        append = results.append
        for value, context.key in zip(records, keys, strict=True):
            append(function(value))
        self.output.emit(Block(results, block.timestamps, None, block.origin))


class KeyedFilterOperator(KeyedFunctionOperator):
    """Keeps some values."""

    def open(self) -> None:
        super().open()
        self._filter = self.method("filter")

    def process_block(self, block: Block) -> None:
        function, context = self._filter, self.key_context
        keys = self.keys.of_block(block)
        records = iter(block.values)
        chosen: list[Any] = []
        append = chosen.append
        for value, context.key in zip(records, keys, strict=True):
            append(function(value))
        values = list(compress(block.values, chosen))
        if values:
            times = block.timestamps
            timestamps = None if times is None else list(compress(times, chosen))
            self.output.emit(Block(values, timestamps, None, block.origin))


class KeyedFlatMapOperator(KeyedFunctionOperator):
    """Any number of values for each value."""

    def open(self) -> None:
        super().open()
        self._flat_map = self.method("flat_map")

    def process_block(self, block: Block) -> None:
        function, context = self._flat_map, self.key_context
        keys = self.keys.of_block(block)
        times = block.timestamps
        out: list[Any] = []
        out_times: list[int] = []
        records = iter(block.values)
        for value, context.key, timestamp in zip(
            records, keys, times if times is not None else repeat(0), strict=False
        ):
            results = function(value)
            if results is not None:
                before = len(out)
                out.extend(results)
                out_times.extend(repeat(timestamp, len(out) - before))
        self.output.emit_results(out, None if times is None else out_times, block.origin)


class ReduceOperator(KeyedFunctionOperator):
    """Rolling reduce: every record puts out the new value of its key."""

    def open(self) -> None:
        super().open()
        self._reduce = self.method("reduce")
        assert self.keyed_state is not None
        self._values = self.keyed_state.entries(ReducingStateDescriptor("_reduced", self.function))

    def process_block(self, block: Block) -> None:
        results = self.reduce_block(block)
        self.output.emit(Block(results, block.timestamps, None, block.origin))

    def reduce_block(self, block: Block) -> list[Any]:
        """The new value after each record."""
        reduce, context, values = self._reduce, self.key_context, self._values
        keys = self.keys.of_block(block)
        results: list[Any] = []
        append = results.append
        records = iter(block.values)
        for value, key in zip(records, keys, strict=True):
            if key in values:
                context.key = key
                value = reduce(values[key], value)
            values[key] = value
            append(value)
        return results


class BatchReduceOperator(ReduceOperator):
    """Reduce in batch mode: the final value of each key, at the end of the input."""

    def process_block(self, block: Block) -> None:
        self.reduce_block(block)

    def finish(self) -> None:
        results = list(self._values.values())
        if results:
            self.output.emit(Block(results, [MAX_TIMESTAMP] * len(results)))
        self._values.clear()
