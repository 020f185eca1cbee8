"""Rows as Python objects: the loop around a user's function, handles of state, checks of types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flinkray.core import values
from flinkray.core.values import IMMUTABLE
from flinkray.kernels import python_rows
from flinkray.kernels.compiled import native
from flinkray.kernels.python_rows import (
    KeyHolder,
    ReducingHandle,
    ValueHandle,
    append_panes,
    fold_panes,
    process_each,
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
    process_each = native.process_each
    fold_panes = native.fold_panes
    append_panes = native.append_panes


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
