"""Map, flat map, filter, reduce and queryable state on keyed streams, record by record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core.values import IMMUTABLE
from flinkray.state.descriptors import (
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.key_group_assignment import KeyHash
from flinkray.state.table import MISSING
from flinkray.streaming.operators.basic import (
    DROPPED,
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    emit_kept,
)
from flinkray.streaming.operators.operator import FunctionOperator, OperatorContext, Output
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.turn import Portion


class KeyedFunctionOperator(FunctionOperator):
    """Base class of operators whose function may use keyed state."""

    def __init__(self, function: Any, keys: Keys) -> None:
        super().__init__(function)
        self.keys = keys

    @property
    def selectors(self) -> Sequence[Any]:
        return self.keys.functions

    def key_hash(self) -> KeyHash:
        return self.keys.hash_of

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        assert self.keyed_state is not None
        self.key_context = self.keyed_state.context


class KeyedMapOperator(KeyedFunctionOperator, MapOperator):
    """Applies a map function to a keyed stream: one result for each value."""

    def process_block(self, block: Block) -> None:
        function, context, own = self._map, self.key_context, self._own
        keys = self.keys.of_block(block)
        results: list[Any] = []
        append = results.append
        for value, context.key in zip(self.read(block), keys, strict=True):
            result = function(value)
            append(result if type(result) in IMMUTABLE else own(result))
        self.output.emit(block.with_values(results))


class KeyedFilterOperator(KeyedFunctionOperator, FilterOperator):
    """Keeps the values for which the filter function returns true, on a keyed stream."""

    def process_block(self, block: Block) -> None:
        function, context, own = self._filter, self.key_context, self._own
        keys = self.keys.of_block(block)
        kept: list[Any] = []
        append = kept.append
        for value, context.key in zip(self.read(block), keys, strict=True):
            if function(value):
                append(value if type(value) in IMMUTABLE else own(value))
            else:
                append(DROPPED)
        emit_kept(self.output, block, kept)


class KeyedFlatMapOperator(KeyedFunctionOperator, FlatMapOperator):
    """Applies a flat-map function to a keyed stream: any number of results for each value."""

    def process_block(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        self.results.of_each(
            self._flat_map, self.read(block), block, keys=keys, key_context=self.key_context
        )


class ReduceOperator(KeyedFunctionOperator):
    """Rolling reduce: for each record it puts out the new reduced value of the record's key."""

    def open(self) -> None:
        super().open()
        self._reduce = self.method("reduce")
        assert self.keyed_state is not None
        self._values = self.keyed_state.value_table(
            ReducingStateDescriptor("_reduced", self.function)
        )

    def process_block(self, block: Block) -> None:
        results = self.reduce_block(block)
        self.output.emit(block.with_values(results))

    def reduce_block(self, block: Block) -> list[Any]:
        """Reduce the records of a block into the state. Returns, for each record, a copy of the
        reduced value of its key after it."""
        reduce, context, load = self._reduce, self.key_context, self._values.get_to_change
        own = self.context.own
        keys = self.keys.of_block(block)
        values: dict[Any, Any] = {}
        """The new values of the keys in this block. They are written to the table together."""
        results: list[Any] = []
        append = results.append
        for value, key in zip(self.read(block), keys, strict=True):
            if key in values:
                context.key = key
                value = reduce(values[key], value)
            else:
                current = load(key, MISSING)
                if current is not MISSING:
                    context.key = key
                    value = reduce(current, value)
            values[key] = value
            append(value if type(value) in IMMUTABLE else own(value))
        self._values.put_all(values)
        return results

    def emit_all(self) -> None:
        """Put out the reduced value of each key, and remove all values from the state."""
        results = [self._values.take(key) for key in self._values.places()]
        for begin, end in Portion(self.context.clock, self.context.turn).of(len(results)):
            times = [MAX_TIMESTAMP] * (end - begin)
            self.output.emit(Block(results[begin:end], times))
            self.context.turn.pause()


class BatchReduceOperator(ReduceOperator):
    """Reduce in batch mode: puts out the final value of each key at the end of the input."""

    def process_block(self, block: Block) -> None:
        self.reduce_block(block)

    def finish(self) -> None:
        self.emit_all()


class QueryableStateOperator(KeyedFunctionOperator):
    """Writes each record into the queryable state of its key, and puts nothing out.
    Value state holds the last record of a key. Reducing and aggregating state add the record."""

    def __init__(self, descriptor: StateDescriptor, keys: Keys) -> None:
        super().__init__(None, keys)
        self.descriptor = descriptor

    def open(self) -> None:
        assert self.keyed_state is not None
        self._state: Any = self.keyed_state.state(self.descriptor)

    def process_block(self, block: Block) -> None:
        is_value = isinstance(self.descriptor, ValueStateDescriptor)
        take = self._state.update if is_value else self._state.add
        context = self.key_context
        keys = self.keys.of_block(block)
        for value, key in zip(self.read(block), keys, strict=True):
            context.key = key
            take(value)
