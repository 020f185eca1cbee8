"""Converts Python values and views to plain Arrow, for operators and sinks that need columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from math import inf
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)

SCALAR_COLUMN = "value"
"""Name of the only column of records that have no fields."""


def block_to_batch(
    block: Block, type_info: TypeInformation | None = None, key: str | None = None
) -> pa.RecordBatch:
    """Return the values as a record batch. Types are those of *type_info*, or are found from the
    values. Rows and dictionaries have a column for each name, tuples f0, f1, …, and other values
    one column, ``value``. If a dictionary lacks a name, the field is null. *key*: name of the key
    column, which is not rounded to a ``FLOAT``, because that would change key groups. Raises
    StreamError: no column holds the values exactly, or they differ in type or fields."""
    _refuse_changes(block.values)
    wanted = None if type_info is None else type_info.to_arrow()
    kinds: list[pa.DataType | None]
    try:
        if type_info is None or wanted is None:
            names, columns = _columns(block.values)
            kinds = [None] * len(names)
        else:
            schema = schema_of(wanted)
            names, kinds = schema.names, list(schema.types)
            columns = _declared_columns(block.values, type_info)
            if key in names and schema.field(key).type in (pa.float16(), pa.float32()):
                kinds[names.index(key)] = None
    except (TypeError, ValueError) as error:
        raise StreamError(f"values cannot be turned into columns: {error}") from error
    arrays = [
        _array(name, column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def block_to_columns(
    block: Block, type_info: TypeInformation | None = None, key: str | None = None
) -> Columns:
    """Return the values as columns (:func:`block_to_batch`), with the timestamps and the origin of
    the block."""
    wanted = None if type_info is None else type_info.to_arrow()
    if wanted is None:
        scalar = not isinstance(block.values[0], Row | dict | tuple)
    else:
        scalar = not pa.types.is_struct(wanted)
    timestamps = None
    if block.timestamps is not None:
        timestamps = np.asarray(block.timestamps, np.int64)
    return Columns(block_to_batch(block, type_info, key), timestamps, block.origin, scalar)


def schema_of(kind: pa.DataType) -> pa.Schema:
    """Return the schema of records of the Arrow type *kind*: a column for each field of a struct;
    for another type, one column ``value``."""
    if pa.types.is_struct(kind):
        return pa.schema([kind.field(place) for place in range(kind.num_fields)])
    return pa.schema([(SCALAR_COLUMN, kind)])


def batch_of_type(batch: pa.RecordBatch, type_info: TypeInformation) -> pa.RecordBatch:
    """Return the batch with columns of the types that the declared type has; unchanged if Arrow
    cannot express the declared type. Columns of a row type are matched by position and get its
    field names. Raises StreamError: the number of columns differs, or values do not fit."""
    wanted = type_info.to_arrow()
    if wanted is None:
        return batch
    fields = [pa.field(batch.schema.names[0] if batch.num_columns else "", wanted)]
    if pa.types.is_struct(wanted):
        fields = [wanted.field(place) for place in range(wanted.num_fields)]
    if len(fields) != batch.num_columns:
        raise StreamError(
            f"columns {batch.schema.names} are not those of the declared type {type_info}"
        )
    columns = [
        _cast(batch.schema.names[place], column, fields[place].type)
        for place, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StreamError(
            f"column {name!r} of type {column.type} cannot be of the declared type {kind}: {error}"
        ) from error


# --- records --------------------------------------------------------------------------------------


Values = Sequence[Any]


def _refuse_changes(values: Values) -> None:
    """Raise StreamError if a row stands for an update or a deletion.
    Columns cannot hold the kind of a row."""
    for value in values:
        if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
            kind = value.get_row_kind()
            raise StreamError(
                f"values cannot be turned into columns: {value!r} is of the kind {kind.name} "
                f"({kind.short_string()}), which columns do not keep: give the kind a field of its "
                "own and the row the kind INSERT, or use functions of single rows"
            )


def _columns(values: Values) -> tuple[list[str], list[list[Any]]]:
    """Return (names, columns) of records without a declared type.
    Raises ValueError: the records differ in their fields, or have none."""
    first = values[0]
    if isinstance(first, dict):
        other = next((value for value in values if not isinstance(value, dict)), None)
        if other is not None:
            raise ValueError(f"{other!r} is not a dictionary, as others are")
        names = list(dict.fromkeys(chain.from_iterable(values)))
        for name in names:
            if not isinstance(name, str):
                raise ValueError(
                    f"the key {name!r} of a dictionary is no name of a column: declare a type "
                    "such as Types.MAP(...)"
                )
        columns = [[value.get(name) for value in values] for name in names]
    elif isinstance(first, Row | tuple):
        names = _names_of(first) or [f"f{place}" for place in range(len(first))]
        columns = _by_name(values, names)
    else:
        return [SCALAR_COLUMN], [list(values)]
    if not names:
        raise ValueError(f"{first!r} has no fields")
    twice = first_twice(names)
    if twice is not None:
        raise ValueError(f"{first!r} has two fields named {twice!r}")
    return names, columns


def _names_of(value: Row | tuple[Any, ...]) -> list[str] | None:
    fields = getattr(value, "_fields", None)
    return list(fields) if fields else None


def _by_name(values: Values, names: list[str], named: bool = True) -> list[list[Any]]:
    """Return the values of each column, for the columns *names*. *named*: fields are matched by
    name; if not, by position. Raises ValueError if a record has other fields."""
    rows = _alike(values, names, named)
    if rows is None:
        rows = [_in_order(value, names, named) for value in values]
    return [list(column) for column in zip(*rows, strict=True)]


def _alike(values: Values, names: list[str], named: bool) -> Values | None:
    """Return the fields of each record, if all records are tuples, or rows with the fields *names*
    in this order. None: there are other records, so the fields of each record must be looked up
    (:func:`_in_order`)."""
    types = set(map(type, values))
    rows = values
    if types == {Row}:
        if named and [value for value in values if value._fields != names]:
            return None
        rows = [value._values for value in values]
    elif types != {tuple}:
        return None
    return rows if set(map(len, rows)) == {len(names)} else None


def _in_order(value: Any, names: list[str], named: bool) -> Values:
    if isinstance(value, dict):
        unknown = [key for key in value if not named or key not in names]
        if unknown:
            raise ValueError(f"{value!r} has the fields {unknown}, and there are only {names}")
        return [value.get(name) for name in names]
    if not isinstance(value, Row | tuple | list):
        raise ValueError(f"{value!r} is not a record of the fields {names}")
    fields = getattr(value, "_fields", None) if named else None
    if len(value) != len(names):
        raise ValueError(f"{value!r} has not the fields {names}")
    if fields is None or list(fields) == names:
        return value._values if isinstance(value, Row) else value
    if sorted(fields) != sorted(names):
        raise ValueError(f"{value!r} has the fields {list(fields)}, and not {names}")
    place = {field: number for number, field in enumerate(fields)}
    return [value[place[name]] for name in names]


# --- declared types -------------------------------------------------------------------------------


def _declared_columns(values: Values, kind: TypeInformation) -> list[list[Any]]:
    if not isinstance(kind, RowTypeInfo | TupleTypeInfo):
        return [_as_arrow_takes(kind, values)]
    columns = _fields(kind, values)
    return [
        _as_arrow_takes(field, column)
        for field, column in zip(kind.field_types, columns, strict=True)
    ]


def _fields(kind: RowTypeInfo | TupleTypeInfo, values: Values) -> list[list[Any]]:
    if isinstance(kind, RowTypeInfo):
        names, named = kind.field_names, kind.is_named
    else:
        names, named = [f"f{place}" for place in range(len(kind.field_types))], False
    return _by_name(values, names, named)


def _as_arrow_takes(kind: TypeInformation, values: Values) -> list[Any]:
    convert = _converter(kind)
    if convert is None:
        return list(values)
    return [None if value is None else convert(value) for value in values]


def _converter(kind: TypeInformation) -> Callable[[Any], Any] | None:
    """Return the function that converts values of the type to values that Arrow accepts. None:
    Arrow accepts them as they are."""
    if isinstance(kind, RowTypeInfo | TupleTypeInfo):
        return lambda value: tuple(column[0] for column in _declared_columns([value], kind))
    if isinstance(kind, ListTypeInfo):
        element = kind.element_type
        if _converter(element) is None:
            return None
        return lambda value: _as_arrow_takes(element, value)
    if isinstance(kind, MapTypeInfo):
        return lambda value: _pairs(kind, value)
    return None


def _pairs(kind: MapTypeInfo, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        keys, items = list(value), list(value.values())
    elif isinstance(value, list) and all(isinstance(it, tuple) and len(it) == 2 for it in value):
        keys, items = [key for key, _ in value], [item for _, item in value]  # from Arrow
    else:
        raise ValueError(f"{value!r} is not a dictionary, as {kind} has them")
    keys = _as_arrow_takes(kind.key_type, keys)
    return list(zip(keys, _as_arrow_takes(kind.value_type, items), strict=True))


# --- columns --------------------------------------------------------------------------------------


def _array(name: str, column: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(column, kind)
        if kind is None and _have_nanoseconds(array.type, column):
            array = pa.array(column, _in_nanoseconds(array.type))
    except UnicodeEncodeError as error:
        raise StreamError(
            f"values cannot be turned into columns: column {name!r} has {text_of(error.object)}: "
            f"{HALF_A_PAIR}"
        ) from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        way_out = (
            "declare an output type, or use values of one type for each field"
            if kind is None
            else f"it is declared as {kind}"
        )
        raise StreamError(
            f"values cannot be turned into columns: column {name!r}: {error}; {way_out}"
        ) from error
    _check_values(name, column, array.type, is_declared=kind is not None)
    return array


HALF_A_PAIR = (
    "it has half of a surrogate pair, which UTF-8 does not hold; replace it, as "
    "text.encode('utf-8', 'replace').decode() does"
)
"""The end of the error message for a text with half of a surrogate pair."""


def _have_nanoseconds(kind: pa.DataType, values: Values) -> bool:
    """Return whether pandas values have nanoseconds, which Arrow would drop."""
    name = "nanosecond" if pa.types.is_timestamp(kind) else "nanoseconds"
    if not (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)):
        return False
    have_any = any(hasattr(cls, name) for cls in set(map(type, values)))
    return have_any and any(getattr(value, name, 0) for value in values)


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("ns")


def _check_values(name: str, values: Values, kind: pa.DataType, *, is_declared: bool) -> None:
    """Check that the conversion of the column *name* to the Arrow type *kind* loses no part of a
    value. Arrow accepts values of other types than the first value's, and drops the parts that do
    not fit. *is_declared*: whether the program has declared the type. Raises StreamError: a part of
    a value would be lost."""
    if not pa.types.is_nested(kind):
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            _check_one_kind(name, values, pa.types.is_date(kind))
        if is_declared:
            _check_declared(name, values, kind)
        else:
            _check_one_family(name, values)
        return
    values = [value for value in values if value is not None]
    if pa.types.is_map(kind):
        pairs = [pair for value in values for pair in value]
        keys, items = [key for key, _ in pairs], [item for _, item in pairs]
        _check_values(f"{name}.key", keys, kind.key_type, is_declared=is_declared)
        _check_values(f"{name}.value", items, kind.item_type, is_declared=is_declared)
    elif pa.types.is_list(kind):
        lists = [value for value in values if not isinstance(value, np.ndarray)]  # one type
        items = [item for value in lists for item in value]
        _check_values(f"{name}[]", items, kind.value_type, is_declared=is_declared)
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            field = kind.field(place)
            fields = [
                value.get(field.name) if isinstance(value, dict) else value[place]
                for value in values
            ]
            _check_values(f"{name}.{field.name}", fields, field.type, is_declared=is_declared)


_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("texts", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("truth values", (bool, np.bool_)),
    ("times", (date, np.datetime64)),
    ("times of day", (time,)),
    ("durations", (timedelta, np.timedelta64)),
    ("UUIDs", (UUID,)),
    ("numbers", (int, float, Decimal, np.number)),
)
"""Kinds of values. A column holds one kind only, because Arrow would take a number for a date.
A class belongs to the first kind that has it or a base class of it."""


def _families_of(values: Values) -> set[str]:
    found = set()
    for cls in set(map(type, values)):
        for name, classes in _FAMILIES:
            if issubclass(cls, classes):
                found.add(name)
                break
    return found


def _check_one_family(name: str, values: Values) -> None:
    families = _families_of(values)
    if len(families) > 1:
        raise StreamError(
            f"column {name!r} has {' and '.join(sorted(families))}: make all values of one kind"
        )


def _check_declared(name: str, values: Values, kind: pa.DataType) -> None:
    lost: Iterable[Any] = ()
    if pa.types.is_integer(kind):
        lost = (v for v in values if isinstance(v, float | Decimal | np.floating) and v % 1 != 0)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        lost = (v for v in values if isinstance(v, bytes | bytearray | memoryview))
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        lost = (v for v in values if isinstance(v, str))
    elif pa.types.is_float32(kind):
        lost = (v for v in values if v is not None and abs(v) > _LARGEST_FLOAT and abs(v) != inf)
    for value in lost:
        raise StreamError(f"column {name!r} is declared as {kind}, and {value!r} is no such value")


_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_DATES = "dates"
_LOCAL = "datetimes without an offset"
_AWARE = "datetimes with an offset"
_AWARE_TIMES = "times with an offset"


def _kinds_of(values: Values) -> set[str]:
    kinds = set()
    for cls in set(map(type, values)):
        if issubclass(cls, datetime):
            local = {value.tzinfo is None for value in values if type(value) is cls}
            kinds |= {_LOCAL if is_local else _AWARE for is_local in local}
        elif issubclass(cls, date):
            kinds.add(_DATES)
        elif issubclass(cls, time) and any(
            value.tzinfo is not None for value in values if type(value) is cls
        ):
            kinds.add(_AWARE_TIMES)
    return kinds


def _check_one_kind(name: str, values: Values, of_dates: bool) -> None:
    kinds = _kinds_of(values)
    if len(kinds) > 1:
        raise StreamError(
            f"column {name!r} has {' and '.join(sorted(kinds))}, and a column of times "
            "holds one of these: make all values of one kind"
        )
    if _AWARE_TIMES in kinds:
        raise StreamError(
            f"column {name!r} has {_AWARE_TIMES}, and a column of times has none: make them text, "
            "or times of one zone without an offset"
        )
    if of_dates and _DATES not in kinds:
        late = next((v for v in values if isinstance(v, datetime) and v.time() != time()), None)
        if late is not None:
            raise StreamError(
                f"column {name!r} is declared to hold dates, and {late} has a time of day"
            )
