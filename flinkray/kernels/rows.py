"""Rows as Python objects: the loop around a user's function, handles of state, checks of types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flinkray.core import values
from flinkray.core.values import IMMUTABLE
from flinkray.kernels import python_rows
from flinkray.kernels.compiled import native
from flinkray.kernels.python_rows import (
    AddSingly,
    Appended,
    Folded,
    KeyHolder,
    PaneOf,
    Portion,
    ReducingHandle,
    ValueHandle,
)

__all__ = [
    "KeyHolder",
    "ReducingHandle",
    "ValueHandle",
    "append_panes",
    "are_of",
    "bind",
    "fold_panes",
    "own",
    "own_all",
    "process_each",
]

own: Callable[[Any], Any] = values.own
"""Returns its argument itself if nobody can change it, else a copy: the compiled form of
:func:`flinkray.core.values.own`."""

if native is not None and not TYPE_CHECKING:
    own = native.owner(IMMUTABLE, values.own)
    KeyHolder = native.KeyHolder
    ValueHandle = native.ValueHandle
    ReducingHandle = native.ReducingHandle


def are_of(kinds: set[type] | frozenset[type], items: Sequence[Any]) -> bool:
    """Return whether the types of all items are in *kinds*, or all items are tuples of such values.
    *kinds* contains int and str. The compiled kernel also returns True for tuples in tuples,
    and for tuples beside other items."""
    if native is None or type(items) is not list:
        return python_rows.are_of(kinds, items)
    return native.are_of(kinds, items)  # type: ignore[no-any-return]


def own_all(items: Sequence[Any]) -> Sequence[Any]:
    """Return the items, with a copy in place of each item that can be changed. If none can be
    changed, return *items* itself."""
    if native is None or type(items) is not list:
        return values.own_all(items)
    return items if native.are_of(IMMUTABLE, items) else list(map(own, items))


def bind(
    handle: ValueHandle | ReducingHandle,
    context: Any,
    entries: dict[Any, Any],
    first_change: Callable[[Any], object],
    slow: Any,
    reduce: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Connect a handle with the present key in *context*, and with the dictionary of a table.
    *first_change* notes the first change of a key since the last capture. *slow*: a handle of the
    same state, which does all that is unusual, such as copying mutable values."""
    if native is None:
        handle._bind(context, entries, first_change, slow, reduce)
    else:
        bound: Any = handle
        bound._bind(KeyHolder, IMMUTABLE, context, entries, first_change, slow, reduce)


def process_each(
    process: Callable[[Any, Any], Iterable[Any] | None],
    records: Iterator[Any],
    context: Any,
    keys: Iterable[Any] | None,
    key_context: KeyHolder | None,
    times: Iterable[int] | None,
    put_out: Callable[[list[Any], list[int] | None], int],
    own: Callable[[Any], Any],
    refuse: Callable[[Any], None],
    limit: int,
) -> Portion:
    """Call ``process(record, context)`` for each record and collect the results.
    For each record, ``context.record_timestamp`` and, with *keys*, ``key_context.key`` are set.
    *own* copies results that could still be changed. *limit* results are a portion, which *put_out*
    gets; *put_out* returns the next limit. *refuse* raises an error if results cannot be iterated
    over. Returns the last portion."""
    if native is None:
        return python_rows.process_each(
            process, records, context, keys, key_context, times, put_out, own, refuse, limit
        )
    portion: Portion = native.process_each(
        process,
        records,
        context,
        keys,
        key_context,
        times,
        put_out,
        own,
        refuse,
        IMMUTABLE,
        limit,
    )
    return portion


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
    which = python_rows if native is None else native
    which.fold_panes(records, keys, times, pane_of, add_singly, fold, begin)


def append_panes(
    records: Iterator[Any],
    keys: Iterable[Any],
    times: Iterable[int],
    pane_of: PaneOf[Appended],
    add_singly: AddSingly,
) -> None:
    """Append each record to the lists of the windows of its time, at its key.
    A new list gets a timer. *pane_of*, *add_singly*: as in :func:`fold_panes`."""
    which = python_rows if native is None else native
    which.append_panes(records, keys, times, pane_of, add_singly)
