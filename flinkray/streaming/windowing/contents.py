"""What is kept of a window's records: all of them, or one value that they were reduced to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from flinkray.streaming.windowing.evictors import TimestampedValue

NAME = "window-contents"


class WindowContents(ABC):
    """How entries of the table of contents are made."""

    descriptor: StateDescriptor

    @abstractmethod
    def first(self, value: Any, timestamp: int | None) -> Any:
        """The entry of a window with one record."""

    @abstractmethod
    def add(self, entry: Any, value: Any, timestamp: int | None) -> Any:
        """The entry with one more; the old one may have been changed."""

    @abstractmethod
    def elements(self, entry: Any) -> Sequence[Any]:
        """What the window function is given."""


class ListContents(WindowContents):
    """All records."""

    def __init__(self) -> None:
        self.descriptor = ListStateDescriptor(NAME)

    def first(self, value: Any, timestamp: int | None) -> Any:
        return [value]

    def add(self, entry: Any, value: Any, timestamp: int | None) -> Any:
        entry.append(value)
        return entry

    def elements(self, entry: Any) -> Sequence[Any]:
        return list(entry)


class TimestampedContents(ListContents):
    """All records with their timestamps, for evictors."""

    def first(self, value: Any, timestamp: int | None) -> Any:
        return [TimestampedValue(value, timestamp)]

    def add(self, entry: Any, value: Any, timestamp: int | None) -> Any:
        entry.append(TimestampedValue(value, timestamp))
        return entry

    def elements(self, entry: Any) -> Sequence[Any]:
        return [element.value for element in entry]


class ReduceContents(WindowContents):
    """One value."""

    def __init__(self, function: Any) -> None:
        self.descriptor = ReducingStateDescriptor(NAME, function)
        self._reduce = self.descriptor.reduce

    def first(self, value: Any, timestamp: int | None) -> Any:
        return value

    def add(self, entry: Any, value: Any, timestamp: int | None) -> Any:
        return self._reduce(entry, value)

    def elements(self, entry: Any) -> Sequence[Any]:
        return (entry,)


class AggregateContents(WindowContents):
    """One accumulator."""

    def __init__(self, function: Any) -> None:
        self.descriptor = AggregatingStateDescriptor(NAME, function)
        self._create = function.create_accumulator
        self._add = function.add
        self._result = function.get_result

    def first(self, value: Any, timestamp: int | None) -> Any:
        return self._add(value, self._create())

    def add(self, entry: Any, value: Any, timestamp: int | None) -> Any:
        return self._add(value, entry)

    def elements(self, entry: Any) -> Sequence[Any]:
        return (self._result(entry),)


class WindowEvaluation(ABC):
    """Calls the user's window function."""

    function: Any = None

    @abstractmethod
    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        """The results of a window; *context* is that of process window functions."""

    def clear(self, context: Any) -> None:
        """The window goes."""
        return


class PassOn(WindowEvaluation):
    """No window function: the elements are the results."""

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        return elements


class Apply(WindowEvaluation):
    """A WindowFunction, or an AllWindowFunction where there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        if self._keyed:
            return self.function.apply(key, context.window(), elements)  # type: ignore[no-any-return]
        return self.function.apply(context.window(), elements)  # type: ignore[no-any-return]


class Process(WindowEvaluation):
    """A ProcessWindowFunction, or a ProcessAllWindowFunction where there are no keys."""

    def __init__(self, function: Any, keyed: bool) -> None:
        self.function = function
        self._keyed = keyed

    def results(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterable[Any] | None:
        if self._keyed:
            return self.function.process(key, context, elements)  # type: ignore[no-any-return]
        return self.function.process(context, elements)  # type: ignore[no-any-return]

    def clear(self, context: Any) -> None:
        self.function.clear(context)
