"""Keys as state keeps them: a value that a dictionary finds again.

A dictionary agrees with :mod:`flinkray.state.key_encoding` about nearly all keys.  It does not know
that NaN is one key, nor what NumPy's and Arrow's scalars equal, and would find a mutable key only
until that is changed.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.state.key_encoding import UnsupportedKeyError, decode_key, encode_key

_PLAIN = frozenset({type(None), bool, int, str, bytes})
"""Types whose values are keys as they are."""


def are_plain(values: Sequence[Any]) -> bool:
    """Whether they are keys as they are, so that nobody has to look at each."""
    kinds = set(map(type, values))
    return kinds <= _PLAIN or (
        kinds == {tuple} and set(map(type, chain.from_iterable(values))) <= _PLAIN
    )


def as_key(value: Any) -> Any:
    """The key that a user's function gave, as it is kept.

    Raises:
        UnsupportedKeyError: it cannot be a key.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if value == value else math.nan
    if isinstance(value, tuple | frozenset):
        return _rebuilt(value)
    if isinstance(value, np.generic | pa.Scalar | memoryview):
        return decode_key(encode_key(value))
    if value != value:  # a decimal NaN, pandas' NaT
        return decode_key(encode_key(value))
    key = _with_fields(value, kind)
    encode_key(key)
    try:
        hash(key)
    except TypeError as error:
        raise UnsupportedKeyError(value, str(error)) from error
    return key


def _rebuilt(value: Any) -> Any:
    """A tuple, named or not, or a set."""
    kept = [as_key(part) for part in value]
    if all(map(operator.is_, kept, value)):
        return value
    make: Callable[[Iterable[Any]], Any] = getattr(value, "_make", type(value))
    return make(kept)


def _with_fields(value: Any, kind: type) -> Any:
    """A dataclass or a class of attrs, with its fields as keys."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.compare]
    else:
        names = [field.name for field in getattr(kind, "__attrs_attrs__", ()) if field.eq]
    result = value
    for name in names:
        part = getattr(value, name)
        kept = as_key(part)
        if kept is not part:
            if result is value:
                result = copy.copy(value)
            object.__setattr__(result, name, kept)  # a frozen class has no other way
    return result
