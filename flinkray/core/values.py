"""Copies values, so that a function never sees that another function changes a value.

Immutable values are passed on; other values are copied, once for each receiver.
"""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import operator
import pathlib
import pickle
import re
import types
import uuid
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.core.frozen_dataclass import is_made_by_frozen_dataclass

Memo = dict[int, Any]
"""Copies made so far by ``id`` of the original, as in :func:`copy.deepcopy`.
A part that occurs twice in a value is one object in the copy, too."""

Copier = Callable[[Any, Memo], Any]

IMMUTABLE: set[type] = {
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type(Ellipsis),
    type(NotImplemented),
    datetime.date,
    datetime.time,
    datetime.datetime,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    re.Pattern,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
}
"""Types whose values can never change; user types, such as enumerations, are added when met."""

# Arrow's data classes, all of which are immutable.
_ARROW = (pa.Scalar, pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, pa.Schema, pa.DataType)


def own(value: Any) -> Any:
    """Return *value* itself if nobody can change it, else a copy.
    Values that cannot be copied, such as locks and connections, are shared."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is tuple:  # the most common kind: avoids a further call
        for part in value:
            if type(part) not in IMMUTABLE:
                break
        else:
            return value
    try:
        copier = _COPIERS.get(kind) or _find_copier(kind)
        return copier(value, {})
    except RecursionError:  # the value contains itself, in a way the copiers do not track
        return copy.deepcopy(value)


def _own_part(value: Any, memo: Memo) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    copier = _COPIERS.get(kind) or _find_copier(kind)
    return copier(value, memo)


def _find_copier(kind: type) -> Copier:
    copier = _COPIERS[kind] = _copier_of(kind)
    return copier


def own_all(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values, with a copy in place of each value that can be changed. If none can be
    changed, return *values* itself."""
    if type(values) is range:
        return values
    kinds = set(map(type, values))
    if kinds <= IMMUTABLE:
        return values
    if kinds == {tuple} and IMMUTABLE.issuperset(map(type, chain.from_iterable(values))):
        return values
    return [own(value) for value in values]


def _own_tuple(value: Any, memo: Memo) -> Any:
    owned = [_own_part(part, memo) for part in value]
    if all(map(operator.is_, owned, value)):
        return value
    if id(value) not in memo:  # unless one of its parts contains the tuple
        memo[id(value)] = tuple(owned)
    return memo[id(value)]


def _own_named_tuple(value: Any, memo: Memo) -> Any:
    if getattr(value, "__dict__", None):  # a subclass may have further attributes
        return _own_object(value, memo)
    owned = [_own_part(part, memo) for part in value]
    if all(map(operator.is_, owned, value)):
        return value
    if id(value) not in memo:
        memo[id(value)] = type(value)._make(owned)
    return memo[id(value)]


def _own_list(value: list[Any], memo: Memo) -> list[Any]:
    copied: list[Any] = []
    memo[id(value)] = copied
    copied += [part if type(part) in IMMUTABLE else _own_part(part, memo) for part in value]
    return copied


def _own_dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    copied = memo[id(value)] = value.copy()
    for key, part in value.items():
        if type(key) not in IMMUTABLE and _own_part(key, memo) is not key:
            return _refilled(copied, value, memo)
        if type(part) not in IMMUTABLE:
            copied[key] = _own_part(part, memo)
    return copied


def _refilled(copied: dict[Any, Any], value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    copied.clear()
    for key, part in value.items():
        copied[_own_part(key, memo)] = _own_part(part, memo)
    return copied


def _own_set(value: set[Any], memo: Memo) -> set[Any]:
    copied = memo[id(value)] = value.copy()
    if not IMMUTABLE.issuperset(map(type, value)):
        copied.clear()
        copied.update([_own_part(part, memo) for part in value])
    return copied


def _own_frozenset(value: frozenset[Any], memo: Memo) -> frozenset[Any]:
    parts = list(value)
    owned = [_own_part(part, memo) for part in parts]
    return value if all(map(operator.is_, owned, parts)) else frozenset(owned)


def _own_deque(value: collections.deque[Any], memo: Memo) -> collections.deque[Any]:
    copied = memo[id(value)] = collections.deque(maxlen=value.maxlen)
    copied.extend([_own_part(part, memo) for part in value])
    return copied


def _own_array(value: Any, memo: Memo) -> Any:
    return _own_object(value, memo) if value.dtype.hasobject else _copied(value, memo)


def _copied(value: Any, memo: Memo) -> Any:
    copied = memo[id(value)] = value.copy()
    return copied


def _own_fields(value: Any, memo: Memo) -> Any:
    """Copy an object whose whole state is its ``__dict__``. *memo*: the copies made so far."""
    attributes = value.__dict__
    copied = memo[id(value)] = object.__new__(type(value))
    copied.__dict__.update(attributes)
    for name, part in attributes.items():
        if type(part) not in IMMUTABLE:
            copied.__dict__[name] = _own_part(part, memo)
    return copied


def _own_frozen(value: Any, memo: Memo) -> Any:
    if IMMUTABLE.issuperset(map(type, value.__dict__.values())):
        return value
    copied = _own_fields(value, memo)
    if all(map(operator.is_, copied.__dict__.values(), value.__dict__.values())):
        memo[id(value)] = value
        return value
    return copied


def _own_frozen_slots(names: Sequence[str]) -> Copier:

    def copier(value: Any, memo: Memo) -> Any:
        for name in names:
            if type(getattr(value, name, None)) not in IMMUTABLE:
                return _own_object(value, memo)
        if IMMUTABLE.issuperset(map(type, getattr(value, "__dict__", {}).values())):
            return value
        return _own_object(value, memo)

    return copier


def _own_frozen_model(value: Any, memo: Memo) -> Any:
    if (
        not value.__pydantic_private__
        and not value.__pydantic_extra__
        and IMMUTABLE.issuperset(map(type, value.__dict__.values()))
    ):
        return value
    return _own_object(value, memo)


def _own_object(value: Any, memo: Memo) -> Any:
    before = len(memo)
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, pickle.PicklingError, NotImplementedError):  # these mean: no copy
        while len(memo) > before:  # remove what was copied in part
            memo.popitem()
        memo[id(value)] = value
        return value


def _own_pandas(value: Any, memo: Memo) -> Any:
    copied = memo[id(value)] = value.copy(deep=True)
    return copied


def _own_by_class(value: Any, memo: Memo) -> Any:
    copied = memo[id(value)] = value.__value_copy__(lambda part: _own_part(part, memo))
    return copied


def _as_it_is(value: Any, memo: Memo) -> Any:
    return value


def _copier_of(kind: type) -> Copier:
    if issubclass(kind, np.void):  # a view of a row: it changes with its array
        return _own_object
    if issubclass(kind, (enum.Enum, type, datetime.date, datetime.timedelta, np.generic, *_ARROW)):
        IMMUTABLE.add(kind)
        return _as_it_is
    if hasattr(kind, "__value_copy__"):
        return _own_by_class
    if issubclass(kind, np.ndarray):
        return _own_array
    if kind.__module__.startswith("pandas."):
        return _own_pandas if hasattr(kind, "iloc") or hasattr(kind, "array") else _own_object
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return _own_named_tuple
    if dataclasses.is_dataclass(kind) and _is_its_dictionary(kind):
        return _own_frozen if is_frozen(kind) else _own_fields
    if hasattr(kind, "__pydantic_private__"):
        model: Any = kind
        return _own_frozen_model if model.model_config.get("frozen") else _own_object
    if is_frozen(kind):
        return _own_frozen_slots(_slots_of(kind))
    return _own_object


def is_frozen(kind: type) -> bool:
    """Return whether ``dataclasses`` or attrs made the class frozen. False for a class that only
    inherits from a frozen dataclass: users can set attributes other than the fields."""
    if hasattr(kind, "__attrs_attrs__"):
        return getattr(kind.__setattr__, "__name__", "") == "_frozen_setattrs"
    parameters: Any = kind.__dict__.get("__dataclass_params__")
    return parameters is not None and (parameters.frozen or is_made_by_frozen_dataclass(kind))


def _slots_of(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_its_dictionary(kind: type) -> bool:
    """Return whether copying ``__dict__`` copies the whole object.
    False if the class defines how it is copied."""
    hooks = ("__copy__", "__deepcopy__", "__getstate__", "__setstate__", "__reduce__")
    bases = [base.__dict__ for base in kind.__mro__ if base is not object]
    return not any(
        base.get("__slots__") or any(hook in base for hook in (*hooks, "__reduce_ex__", "__new__"))
        for base in bases
    )


_COPIERS: dict[type, Copier] = {
    tuple: _own_tuple,
    list: _own_list,
    dict: _own_dict,
    collections.OrderedDict: _own_dict,
    collections.defaultdict: _own_dict,
    collections.Counter: _own_dict,
    set: _own_set,
    frozenset: _own_frozenset,
    bytearray: _copied,
    array.array: _own_object,
    collections.deque: _own_deque,
}
"""Copiers by type; copiers of other types are added at first use."""
