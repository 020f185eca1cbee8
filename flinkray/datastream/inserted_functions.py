"""Functions that stream methods add to a program: keys beside values, and two streams as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flinkray.kernels.rows import own, own_all
from flinkray.streaming.functions.functions import KeySelector, MapFunction, WindowFunction
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.records.row import Row

if TYPE_CHECKING:
    from flinkray.streaming.functions.runtime_context import RuntimeContext


class KeyAndValue(MapFunction[Any, Row]):
    """Map function that returns a row of key and value."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def open(self, runtime_context: RuntimeContext) -> None:
        for function in self._keys.functions:
            function.open(runtime_context)

    def close(self) -> None:
        for function in self._keys.functions:
            function.close()

    def map(self, value: Any) -> Row:
        return Row(f0=self._keys.of_value(value), f1=value)


class KeyOfTagged(KeySelector[Any, Any]):
    """Key selector for the pairs of :class:`TagOperator`. It passes the value of a pair to the key
    selector of the value's stream."""

    def __init__(self, *keys: Keys) -> None:
        self._keys = keys
        self._selects = tuple(of_stream.select for of_stream in keys)

    def open(self, runtime_context: RuntimeContext) -> None:
        for function in functions_of(*self._keys):
            function.open(runtime_context)

    def close(self) -> None:
        for function in functions_of(*self._keys):
            function.close()

    def get_key(self, value: Any) -> Any:
        side, tagged = value
        return self._selects[side](tagged)

    def _keys_of_all(self, values: Iterable[Any]) -> list[Any]:
        selects = self._selects
        return [selects[side](tagged) for side, tagged in values]


class OfBoth(WindowFunction[Any, Any, Any, Any]):
    """Window function for the pairs of :class:`TagOperator`. It divides the values of a window into
    two lists, one for each stream, calls the user's function once with both lists, and returns the
    results of this function."""

    def __init__(self, function: Any, method: str) -> None:
        self._function = function
        self._method = method

    def open(self, runtime_context: Any) -> None:
        if hasattr(self._function, "open"):
            self._function.open(runtime_context)
        self._call = getattr(self._function, self._method, self._function)

    def close(self) -> None:
        if hasattr(self._function, "close"):
            self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, value in inputs:
            sides[side].append(value)
        return self._results(*sides)

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        return self._call(first, second) or ()


class OfPairs(OfBoth):
    """Window function that calls the user's function for each pair of a value of the first stream
    and a value of the second stream in the window, and returns the results."""

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        records = inputs if type(inputs) is list else list(inputs)
        if len(records) != 2:
            return super().apply(key, window, records) if len(records) > 2 else ()
        (side, first), (other, second) = records
        if side == other:
            return ()
        return (self._call(first, second) if side == 0 else self._call(second, first),)

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        call = self._call
        # A function may change its arguments, and a record is in several pairs.
        first_own, second_own = (
            _as_it_is if own_all(side) is side else own for side in (first, second)
        )
        return (call(first_own(one), second_own(other)) for one in first for other in second)


def _as_it_is(value: Any) -> Any:
    return value
