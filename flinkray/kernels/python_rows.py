"""Rows as Python objects: the loop around a user's function, and handles of state, in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

from flinkray.core.values import IMMUTABLE

_MISSING: Any = object()

Portion = tuple[list[Any], "list[int] | None"]
"""Results, and their timestamps if the records have timestamps."""

Folded = tuple[Any, dict[Any, Any]]
"""A window, and what it holds by key."""

Appended = tuple[
    Any, dict[Any, list[Any]], dict[Any, None], "set[Any] | None", Callable[[Any], object]
]
"""A window, lists by place (key and window), the timers at the end of the window, the places that
have changed (None: changes are not noted), and a function that notes the first change of a place.
"""

PaneT = TypeVar("PaneT")

PaneOf = Callable[[int], "tuple[int, int, Sequence[PaneT] | None]"]
"""Returns the first time and the end of the pane that contains a time, and the windows to which its
records belong."""

AddSingly = Callable[[int, Any, Any, int], None]
"""Takes the place of a record in its block, the record, its key and its time."""


class KeyHolder:
    """Holds the present key."""

    __slots__ = ("key",)
    key: Any


class _Handle:
    __slots__ = ("_changed", "_context", "_entries", "_first_change", "_read", "_slow", "_written")

    def _bind(
        self,
        context: Any,
        entries: dict[Any, Any],
        first_change: Callable[[Any], object],
        slow: Any,
        reduce: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._context = context
        self._entries = entries
        self._first_change = first_change
        self._slow = slow
        self._changed: set[Any] | None = None
        self._read: type | None = None
        """A type whose values are returned without a copy."""
        self._written: type | None = None
        """A type whose values are stored without a copy."""

    def _follow(self, changed: set[Any] | None) -> None:
        """Set the set of changed keys. None: changes are not noted."""
        self._changed = changed

    def _write(self, key: Any, value: Any) -> None:
        if self._changed is not None and key not in self._changed:
            self._first_change(key)
        self._entries[key] = value


class ValueHandle(_Handle):
    """Reads and replaces the value of the current key.
    Consecutive values mostly have the same type, so an immutable value with the type of the
    previous one is written directly to the dictionary."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the value of the current key."""
        value = self._entries.get(self._context.key, _MISSING)
        if type(value) is self._read:
            return value
        if type(value) in IMMUTABLE:
            self._read = type(value)
            return value
        return self._slow.value()

    def update(self, value: Any) -> None:
        """Replace the value of the current key; None removes it."""
        if type(value) is self._written:
            key = self._context.key
            if self._changed is not None and key not in self._changed:
                self._first_change(key)
            self._entries[key] = value
            return
        self._slow.update(value)
        if value is not None and type(value) in IMMUTABLE:
            self._written = type(value)


class ReducingHandle(_Handle):
    """Reads the value of the current key, and reduces further values into it."""

    __slots__ = ("_reduce",)

    def _bind(self, *arguments: Any) -> None:
        super()._bind(*arguments)
        self._reduce = arguments[-1]

    def get(self) -> Any:
        """Return the reduced value of the current key."""
        value = self._entries.get(self._context.key, _MISSING)
        return value if type(value) in IMMUTABLE else self._slow.get()

    def add(self, value: Any) -> None:
        """Reduce a value into the value of the current key."""
        key = self._context.key
        current = _MISSING if value is None else self._entries.get(key, _MISSING)
        if type(current) in IMMUTABLE and type(value) in IMMUTABLE:
            self._write(key, self._reduce(current, value))
        else:
            self._slow.add(value)


def are_of(kinds: set[type] | frozenset[type], values: Sequence[Any]) -> bool:
    found = set(map(type, values))
    return found <= kinds or (
        found == {tuple} and kinds.issuperset(map(type, chain.from_iterable(values)))
    )


def process_each(
    process: Callable[[Any, Any], Iterable[Any] | None],
    records: Iterator[Any],
    context: Any,
    keys: Iterable[Any] | None,
    key_context: Any,
    times: Iterable[int] | None,
    put_out: Callable[[list[Any], list[int] | None], int],
    own: Callable[[Any], Any],
    refuse: Callable[[Any], None],
    immutable: set[type],
    limit: int,
) -> Portion:
    """Call ``process(record, context)`` for each record and collect the results.
    For each record, ``context.record_timestamp`` and, with *keys*, ``key_context.key`` are set.
    *own* copies results that could still be changed; values of the types *immutable* cannot.
    *limit* results are a portion, which *put_out* gets; *put_out* returns the next limit. *refuse*
    raises an error if results cannot be iterated over. Returns the last portion."""
    nowhere: Any = _Nowhere()
    about = nowhere if context is None else context
    key_context = nowhere if keys is None else key_context
    stamped = times is not None
    values: list[Any] = []
    stamps: list[Any] = []
    usual = first_kind = second_kind = type(None)
    results: Any = None
    try:
        for value, key_context.key, timestamp in zip(
            records,
            repeat(None) if keys is None else keys,
            repeat(None) if times is None else times,
            strict=False,
        ):
            about.record_timestamp = timestamp
            results = process(value, context)
            if results is None:
                continue
            for result in results:
                kind = type(result)
                if kind is usual:
                    pass
                elif kind is tuple:
                    if len(result) == 2:
                        first, second = result
                        if type(first) is not first_kind or type(second) is not second_kind:
                            if type(first) in immutable and type(second) in immutable:
                                first_kind, second_kind = type(first), type(second)
                            else:
                                result = own(result)
                    else:
                        for part in result:
                            if type(part) not in immutable:
                                result = own(result)
                                break
                elif kind in immutable:
                    usual = kind
                else:
                    result = own(result)
                values.append(result)
                if stamped:
                    stamps.append(timestamp)
                if len(values) >= limit:
                    limit = put_out(values, stamps if stamped else None)
                    values, stamps = [], []
    except TypeError:
        refuse(results)
        raise
    return values, stamps if stamped else None


def fold_panes(
    records: Iterator[Any],
    keys: Iterable[Any],
    times: Iterable[int],
    pane_of: PaneOf[Folded],
    add_singly: AddSingly,
    fold: Callable[[Any, Any], Any],
    begin: Callable[[Any, Any, Any], Any],
) -> None:
    """Add each record to what the windows of its time hold for its key.

    Args:
        pane_of: is called with a time that is not in the previous pane. If it returns no windows,
            each record of the pane goes to *add_singly*.
        fold: (record, contents) -> new contents.
        begin: (key, window, record) -> contents, if a window has none for the key.
    """
    for value, key, panes in _with_panes(records, keys, times, pane_of, add_singly):
        for window, entries in panes:
            if key in entries:
                entries[key] = fold(value, entries[key])
            else:
                entries[key] = begin(key, window, value)


def append_panes(
    records: Iterator[Any],
    keys: Iterable[Any],
    times: Iterable[int],
    pane_of: PaneOf[Appended],
    add_singly: AddSingly,
) -> None:
    """Append each record to the lists of the windows of its time, at its key.
    A new list gets a timer. *pane_of*, *add_singly*: as in :func:`fold_panes`."""
    for value, key, panes in _with_panes(records, keys, times, pane_of, add_singly):
        for window, entries, timers, changed, first_change in panes:
            place = (key, window)
            if changed is not None and place not in changed:
                first_change(place)
            values = entries.get(place)
            if values is None:
                entries[place] = [value]
                timers[place] = None
            else:
                values.append(value)


def _with_panes(
    records: Iterator[Any],
    keys: Iterable[Any],
    times: Iterable[int],
    pane_of: PaneOf[PaneT],
    add_singly: AddSingly,
) -> Iterator[tuple[Any, Any, Sequence[PaneT]]]:
    first = end = 0
    panes: Sequence[PaneT] | None = None
    for place, (value, key, timestamp) in enumerate(zip(records, keys, times, strict=False)):
        if not first <= timestamp < end:
            first, end, panes = pane_of(timestamp)
        if panes is None:
            add_singly(place, value, key, timestamp)
        else:
            yield value, key, panes


class _Nowhere:
    """A context that is not needed: its timestamp and key can be set, without effect."""

    __slots__ = ("key", "record_timestamp")
