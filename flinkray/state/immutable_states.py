"""What a query answers: the state of one key as it was at a moment, which nobody can change."""

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
    """The answer of a query is a copy: the state itself is changed by the job alone."""

    def __init__(self, text: str = "") -> None:
        super().__init__(
            text
            or "State is read-only: it is what a query answered. The state itself is changed by "
            "the job alone"
        )
        self.args = (str(self),)


class ImmutableState(State):
    """What all answers have in common."""

    def clear(self) -> NoReturn:
        raise ReadOnlyStateError


class ImmutableValueState(ImmutableState, ValueState[Any]):
    """See :class:`ValueState`."""

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
    """See :class:`ReducingState`."""


class ImmutableAggregatingState(_ImmutableAppending, AggregatingState[Any, Any]):
    """See :class:`AggregatingState`.  What is stored is an accumulator; the result comes from the
    descriptor's function, or is the accumulator if there is no descriptor."""

    def __init__(self, accumulator: Any, function: Any = None) -> None:
        super().__init__(accumulator)
        self._function = function

    def get(self) -> Any:
        accumulator = super().get()
        return accumulator if self._function is None else self._function.get_result(accumulator)


class ImmutableListState(ImmutableState, ListState[Any]):
    """See :class:`ListState`."""

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
    """See :class:`MapState`."""

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
    """What a query has found, as a state of its kind."""
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
