"""Results of queries: the state of one key at a moment, which cannot be changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from flinkray.core.values import own, own_all
from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.interfaces import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)


class ReadOnlyStateError(StateError):
    """A program tried to change the result of a query, which is a copy of the state."""

    def __init__(self, text: str = "") -> None:
        super().__init__(
            text
            or "State is read-only: it is what a query answered. The state itself is changed by "
            "the job alone"
        )
        self.args = (str(self),)


class ImmutableState(State):
    """Base class of the states that queries return; changing one raises ReadOnlyStateError."""

    def clear(self) -> NoReturn:
        raise ReadOnlyStateError


class ImmutableValueState(ImmutableState, ValueState[Any]):
    """The :class:`ValueState` that a query returns."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return own(self._value)

    def update(self, value: Any) -> NoReturn:
        raise ReadOnlyStateError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"


class _ImmutableAppending(ImmutableState):
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return own(self._value)

    def add(self, value: Any) -> NoReturn:
        raise ReadOnlyStateError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"


class ImmutableReducingState(_ImmutableAppending, ReducingState[Any]):
    """The :class:`ReducingState` that a query returns."""


class ImmutableAggregatingState(_ImmutableAppending, AggregatingState[Any, Any]):
    """The :class:`AggregatingState` that a query returns. The stored value is an accumulator. The
    result comes from the descriptor's function, or is the accumulator if there is no descriptor."""

    def __init__(self, accumulator: Any, function: Any = None) -> None:
        super().__init__(accumulator)
        self._function = function

    def get(self) -> Any:
        accumulator = super().get()
        return accumulator if self._function is None else self._function.get_result(accumulator)


class ImmutableListState(ImmutableState, ListState[Any]):
    """The :class:`ListState` that a query returns."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def get(self) -> list[Any]:
        return list(own_all(self._values))

    def add(self, value: Any) -> NoReturn:
        raise ReadOnlyStateError

    def add_all(self, values: Iterable[Any]) -> NoReturn:
        raise ReadOnlyStateError

    def update(self, values: Iterable[Any]) -> NoReturn:
        raise ReadOnlyStateError

    def __repr__(self) -> str:
        return f"ImmutableListState({self._values!r})"


class ImmutableMapState(ImmutableState, MapState[Any, Any]):
    """The :class:`MapState` that a query returns."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self._entries = entries

    def get(self, key: Any) -> Any:
        return own(self._entries.get(key))

    def put(self, key: Any, value: Any) -> NoReturn:
        raise ReadOnlyStateError

    def put_all(self, dict_value: dict[Any, Any]) -> NoReturn:
        raise ReadOnlyStateError

    def remove(self, key: Any) -> NoReturn:
        raise ReadOnlyStateError

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> list[tuple[Any, Any]]:
        return list(own(self._entries).items())

    def keys(self) -> list[Any]:
        return list(self._entries)

    def values(self) -> list[Any]:
        return list(own(self._entries).values())

    def is_empty(self) -> bool:
        return not self._entries

    def __repr__(self) -> str:
        return f"ImmutableMapState({self._entries!r})"


def immutable_state(kind: str, contents: Any, descriptor: StateDescriptor | None) -> Any:
    """Return *contents*, the result of a query, as a read-only state of kind *kind*.
    *descriptor*: has the function of an aggregating state. None: its accumulator is the result."""
    if kind == ValueStateDescriptor.kind:
        return ImmutableValueState(contents)
    if kind == "list":
        return ImmutableListState(contents)
    if kind == "map":
        return ImmutableMapState(contents)
    if kind == "reducing":
        return ImmutableReducingState(contents)
    known = isinstance(descriptor, AggregatingStateDescriptor)
    return ImmutableAggregatingState(contents, descriptor.agg_function if known else None)  # type: ignore[union-attr]
