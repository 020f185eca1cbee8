"""Keys in the form in which state keeps them, so that dictionaries find them again.

Dictionaries agree with :mod:`flinkray.state.key_encoding` for nearly all keys, except NaN and
scalars of NumPy and Arrow. A dictionary would not find a mutable key after a change.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.core.values import IMMUTABLE, is_frozen, own
from flinkray.kernels.rows import are_of
from flinkray.state.key_encoding import (
    NAN,
    NaN,
    UnsupportedKeyError,
    compared_fields,
    decode_key,
    encode_key,
    is_of_pandas,
    require_equality,
)

Keep = Callable[[Any], Any]

IMMUTABLE.add(NaN)

_PLAIN = frozenset(
    {type(None), bool, int, str, bytes, NaN}
    | {datetime.date, datetime.time, datetime.timedelta, uuid.UUID, fractions.Fraction}
)
"""Types whose values are keys without conversion."""


def are_plain(values: Sequence[Any]) -> bool:
    """Return whether state can keep all *values* as keys just as they are, without conversion or
    check."""
    return are_of(_PLAIN, values)


def as_key(value: Any) -> Any:
    """Return a user's key in the form in which state keeps it, such as one NaN object for all NaNs.
    Raises UnsupportedKeyError if the value cannot be a key."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    keep = _KEEPERS.get(kind)
    if keep is None:
        keep = _KEEPERS[kind] = _keeper_of(value, kind)
    try:
        return keep(value)
    except RecursionError as error:
        raise UnsupportedKeyError.of(value, "it is nested too deeply, or within itself") from error


def own_key(value: Any) -> Any:
    """Return the key in the form in which state keeps it, as a copy if others could change it.
    State, timers and the choice of a subtask use this key. User code that is shown the key gets
    another copy (:func:`flinkray.core.values.own`). Raises UnsupportedKeyError if the value cannot
    be a key."""
    kept = as_key(value)
    kind = type(kept)
    return kept if kind in IMMUTABLE or kind in _OWNED else own(kept)


def can_change(keys: Sequence[Any]) -> bool:
    """Return whether, by their types, user code might change one of the keys in place."""
    kinds = set(map(type, keys))
    return not (
        kinds <= IMMUTABLE
        or (kinds == {tuple} and IMMUTABLE.issuperset(map(type, chain.from_iterable(keys))))
    )


def as_places(keys: list[Any], namespaces: list[Any] | None) -> Iterable[Any]:
    """Return the places (key, or pair of key and namespace) of stored *keys* and *namespaces*. Keys
    are converted by :func:`as_key`. *namespaces* None: the table has none."""
    found = keys if are_plain(keys) else list(map(as_key, keys))
    return found if namespaces is None else zip(found, namespaces, strict=True)


def _keep_float(value: float) -> float:
    return value if value == value else NAN


def _keep_decimal(value: decimal.Decimal) -> Any:
    return NAN if value.is_nan() else value


def _keep_complex(value: complex) -> complex:
    if value != value:
        raise UnsupportedKeyError.of(value, "it holds NaN, and does not equal itself")
    return value


def _keep_datetime(value: datetime.datetime) -> Any:
    zone = value.tzinfo
    if zone is None or type(zone) is datetime.timezone:
        return value
    if value.utcoffset() == value.replace(fold=1 - value.fold).utcoffset():
        return value
    # When clocks are changed, Python compares local times.
    return value.astimezone(datetime.timezone.utc)


def _keep_decoded(value: Any) -> Any:
    """Return the Python value that decoding the encoding of a NumPy or pandas time gives.
    The original time can equal a Python time and yet have another hash."""
    return decode_key(encode_key(value))


def _keep_numpy(value: np.generic) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _keep_decoded(value)
    if isinstance(value, np.floating):
        return _keep_float(float(value))
    if isinstance(value, np.complexfloating):
        return _keep_complex(complex(value))
    encode_key(value)
    return as_key(value.item())


def _keep_arrow(value: pa.Scalar) -> Any:
    if pa.types.is_temporal(value.type):
        return _keep_decoded(value)
    return as_key(value.as_py())


def _keep_memory(value: memoryview) -> bytes:
    return bytes(value)


def _keep_tuple(value: Any) -> Any:
    kept = [as_key(part) for part in value]
    if all(one is other for one, other in zip(kept, value, strict=True)):
        return value
    make: Callable[[Iterable[Any]], Any] = getattr(value, "_make", None) or _builtin(value)
    return make(kept)


def _builtin(value: Any) -> Callable[[Iterable[Any]], Any]:
    return frozenset if isinstance(value, frozenset) else tuple


def _keeper_of_fields(names: Sequence[str], keep_part: Keep) -> Keep:
    def keep(value: Any) -> Any:
        result = value
        for name in names:
            part = getattr(value, name)
            kept = keep_part(part)
            if kept is not part:
                if result is value:
                    result = copy.copy(value)
                object.__setattr__(result, name, kept)  # frozen classes need this
        return result

    return keep


def _keep_pydantic(value: Any) -> Any:
    parts = dict(value.__dict__)
    kept = {name: as_key(part) for name, part in parts.items()}
    changed = {name: part for name, part in kept.items() if part is not parts[name]}
    return value.model_copy(update=changed) if changed else value


def _keep_copy(value: Any) -> Any:
    return value.__key_copy__(own_key)


def _keep_object(value: Any) -> Any:
    encode_key(value)
    try:
        hash(value)
        is_itself = bool(value == value)
    except (TypeError, ValueError) as error:
        raise UnsupportedKeyError.of(value, str(error)) from error
    if not is_itself:
        raise UnsupportedKeyError.of(value, "it does not equal itself")
    return value


def _keeper_of(value: Any, kind: type) -> Keep:
    if isinstance(value, np.generic):
        return _keep_numpy
    if isinstance(value, pa.Scalar):
        return _keep_arrow
    if isinstance(value, datetime.datetime | datetime.timedelta) and is_of_pandas(kind):
        return _keep_decoded
    if hasattr(kind, "__key_copy__"):
        _OWNED.add(kind)
        return _keep_copy
    if isinstance(value, enum.Enum | type):
        return _as_it_is
    names = compared_fields(kind)
    if names is not None:
        require_equality(value)
        if is_frozen(kind) and len(names) == _number_of_fields(kind):
            _OWNED.add(kind)
            return _keeper_of_fields(names, own_key)
        return _keeper_of_fields(names, as_key)
    if hasattr(kind, "__pydantic_fields__"):
        require_equality(value)
        return _keep_pydantic
    equality: Any = kind.__eq__
    if isinstance(value, tuple | frozenset) and equality in (tuple.__eq__, frozenset.__eq__):
        return _keep_tuple
    return _keep_object


def _number_of_fields(kind: Any) -> int:
    is_dataclass = dataclasses.is_dataclass(kind)
    return len(dataclasses.fields(kind) if is_dataclass else kind.__attrs_attrs__)


def _as_it_is(value: Any) -> Any:
    return value


_KEEPERS: dict[type, Keep] = {
    float: _keep_float,
    decimal.Decimal: _keep_decimal,
    complex: _keep_complex,
    datetime.datetime: _keep_datetime,
    tuple: _keep_tuple,
    frozenset: _keep_tuple,
    memoryview: _keep_memory,
}
"""Converters by type; converters of other types are added at first use."""

_OWNED: set[type] = set()
"""Types whose converters return values that nobody else can change."""
