"""Operators with two inputs, for connected streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flinkray.state.key_group_assignment import KeyHash
from flinkray.streaming.operators.basic import without_context
from flinkray.streaming.operators.collector import Collector
from flinkray.streaming.operators.operator import (
    FunctionOperator,
    OperatorContext,
    Output,
    Receiver,
    StreamOperator,
)
from flinkray.streaming.operators.process import (
    KeyedTimersOperator,
    RecordContext,
    TimelessOperator,
)
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.time.combined_watermarks import CombinedWatermark, ValveOutput


class InputPort:
    """One input of an operator with two inputs: passes its batches and watermarks on to the
    operator."""

    takes_columns = False

    def __init__(self, operator: Any, number: int) -> None:
        self._operator = operator
        self._number = number
        self.process_block: Callable[[Block], None] = (
            operator.process_first if number == 0 else operator.process_second
        )

    def process_columns(self, columns: Columns) -> None:
        self._operator.process_rows(columns, self.process_block)

    def process_watermark(self, timestamp: int) -> None:
        self._operator.take_time(self._operator.time_of_inputs.watermark(self._number, timestamp))

    def process_status(self, idle: bool) -> None:
        self._operator.take_time(self._operator.time_of_inputs.status(self._number, idle))


class TwoInputs(StreamOperator):
    """Mixin class of operators with two inputs.
    The operator's watermark is the lesser of the watermarks of both inputs."""

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        self.time_of_inputs = CombinedWatermark(2)

    def inputs(self) -> Sequence[Receiver]:
        return (InputPort(self, 0), InputPort(self, 1))

    def take_time(self, result: ValveOutput) -> None:
        """Process a change of the combined time of both inputs: least watermark, or idle status."""
        result.tell(
            self.process_watermark,
            lambda idle: self.context.turn.then(lambda: self.process_status(idle)),
        )

    def process_first(self, block: Block) -> None:
        raise NotImplementedError

    def process_second(self, block: Block) -> None:
        raise NotImplementedError


class CoMapOperator(TwoInputs, FunctionOperator):
    """Calls ``map1`` and ``map2``. A result None is left out, as in PyFlink.
    With *keys* (one for each input) the function may use keyed state."""

    def __init__(self, function: Any, keys: tuple[Keys, Keys] | None = None) -> None:
        super().__init__(function)
        self._keys = keys

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(*self._keys or ())

    def key_hash(self) -> KeyHash:
        return super().key_hash() if self._keys is None else self._keys[0].hash_of

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self.results = Collector(context, output)

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
        process = without_context(function)
        if self._keys is None:
            self.results.of_each(process, self.read(block), block)
        else:
            assert self.keyed_state is not None
            keys = self._keys[side].of_block(block)
            self.results.of_each(
                process, self.read(block), block, keys=keys, key_context=self.keyed_state.context
            )


class CoFlatMapOperator(CoMapOperator):
    """Calls ``flat_map1`` and ``flat_map2``: any number of results for each value."""

    def process_first(self, block: Block) -> None:
        self._process(self.function.flat_map1, 0, block)

    def process_second(self, block: Block) -> None:
        self._process(self.function.flat_map2, 1, block)


class CoProcessOperator(TwoInputs, TimelessOperator):
    """Runs a co-process function on streams without keys."""

    def open(self) -> None:
        super().open()
        self._record_context = RecordContext(self.time)

    def process_first(self, block: Block) -> None:
        self._process(self.function.process_element1, block)

    def process_second(self, block: Block) -> None:
        self._process(self.function.process_element2, block)

    def _process(self, function: Callable[[Any, Any], Any], block: Block) -> None:
        self.results.of_each(function, self.read(block), block, self._record_context)


class KeyedCoProcessOperator(TwoInputs, KeyedTimersOperator):
    """Runs a co-process function on two keyed streams, which share state and timers."""

    def __init__(self, function: Any, keys1: Keys, keys2: Keys) -> None:
        super().__init__(function, keys1)
        self._keys2 = keys2

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(self.keys, self._keys2)

    def process_first(self, block: Block) -> None:
        self.process_keyed(self.function.process_element1, self.keys.of_block(block), block)

    def process_second(self, block: Block) -> None:
        self.process_keyed(self.function.process_element2, self._keys2.of_block(block), block)
