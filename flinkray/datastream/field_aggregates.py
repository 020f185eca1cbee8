"""Reduce functions for sum, min, max, min_by and max_by on rows, tuples and bare values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import ReduceFunction
from flinkray.streaming.records.row import Row

Position = int | str


def _is_less(left: Any, right: Any) -> bool:
    """Return whether *left* is less.
    NaN is greater than every number (Java's ``Double.compareTo``)."""
    return bool(left < right or (right != right and left == left))


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda left, right: left + right,
    "min": lambda left, right: right if _is_less(right, left) else left,
    "max": lambda left, right: right if _is_less(left, right) else left,
}


def check_position(position: Any) -> None:
    if not isinstance(position, int | str) or isinstance(position, bool):
        raise TypeError(f"a field is given by its position or its name, got {position!r}")


class FieldReduce(ReduceFunction[Any]):
    """Reduce function that aggregates one field of two values. The other fields of the result are
    those of the first value."""

    def __init__(self, how: str, position: Position) -> None:
        check_position(position)
        self._combine = _COMBINE[how]
        self._position = position

    def reduce(self, value1: Any, value2: Any) -> Any:
        position = self._position
        if isinstance(value1, Row):
            row = value1.copy()
            row[position] = self._combine(value1[position], value2[position])
            return row
        if isinstance(value1, tuple | list):
            fields = list(value1)
            place = _place(value1, position)
            fields[place] = self._combine(value1[place], value2[place])
            return _like(value1, fields)
        if isinstance(value1, dict):
            return {**value1, position: self._combine(value1[position], value2[position])}
        _check_bare(position)
        return self._combine(value1, value2)


class PickBy(ReduceFunction[Any]):
    """Reduce function that returns, of two values, the one with the least (or greatest) field. If
    the fields are equal, it returns the first value."""

    def __init__(self, how: str, position: Position) -> None:
        check_position(position)
        self._least = how == "min"
        self._position = position

    def reduce(self, value1: Any, value2: Any) -> Any:
        first, second = (_field(value, self._position) for value in (value1, value2))
        better = _is_less(second, first) if self._least else _is_less(first, second)
        return value2 if better else value1


def _field(value: Any, position: Position) -> Any:
    if isinstance(value, Row):
        return value[position]
    if isinstance(value, tuple | list):
        return value[_place(value, position)]
    if isinstance(value, dict):
        return value[position]
    _check_bare(position)
    return value


def _place(value: Any, position: Position) -> int:
    if isinstance(position, int):
        return position
    names = getattr(value, "_fields", None)
    if names is None or position not in names:
        raise StreamError(f"{value!r} has no field {position!r}; give its position")
    return int(names.index(position))


def _like(value: Any, fields: list[Any]) -> Any:
    make = getattr(type(value), "_make", None)
    return make(fields) if make is not None else type(value)(fields)


def _check_bare(position: Position) -> None:
    if position != 0:
        raise TypeError(
            f"field {position!r} of a value without fields: only position 0, the value itself, "
            "can be chosen"
        )
