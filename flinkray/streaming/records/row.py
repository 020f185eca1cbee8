"""Rows: values by position, and by name if the row has field names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from flinkray.core.arguments import first_twice
from flinkray.core.values import IMMUTABLE
from flinkray.state.snapshots import RecordForm
from flinkray.state.value_encoding import (
    HIDDEN,
    NAMED_ROWS,
    ROWS_BY_POSITION,
    RecordType,
    register_record_type,
)


class RowKind(Enum):
    """Kind of change that a row describes in a changelog (Flink's RowKind)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def short_string(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]


class Row:
    """A row: ``Row(1, "a")`` has positions, ``Row(id=1, name="a")`` also names (sorted: PyFlink).

    >>> row = Row(name="Ada", age=36)
    >>> row, row.name, row["age"], row[0]
    (Row(age=36, name='Ada'), 'Ada', 36, 36)

    A row of names creates rows:

    >>> Person = Row("name", "age")
    >>> Person("Ada", 36)
    Row(name='Ada', age=36)
    """

    __slots__ = ("_fields", "_row_kind", "_values")
    _fields: list[str] | None
    _row_kind: RowKind
    _values: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("a Row takes values by position or by name, not both")
        if kwargs:
            fields = sorted(kwargs)
            _set(self, "_fields", fields)
            _set(self, "_values", [kwargs[name] for name in fields])
        else:
            _set(self, "_fields", None)
            _set(self, "_values", list(args))
        _set(self, "_row_kind", RowKind.INSERT)

    @staticmethod
    def of(fields: list[str] | None, values: list[Any]) -> Row:
        """Create a row of the two lists themselves: the caller must not use them any more."""
        row = _new(Row)
        _set(row, "_fields", fields)
        _set(row, "_values", values)
        _set(row, "_row_kind", RowKind.INSERT)
        return row

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return values by name. *recursive*: also of rows inside rows, lists and dictionaries.
        Raises TypeError if the row has no names, ValueError if two fields have the same name."""
        if self._fields is None:
            raise TypeError(f"{self!r} has no field names")
        twice = first_twice(self._fields)
        if twice is not None:
            raise ValueError(f"{self!r} has two fields named {twice!r}")
        if not recursive:
            return dict(zip(self._fields, self._values, strict=False))
        return {
            name: _as_plain(value) for name, value in zip(self._fields, self._values, strict=False)
        }

    def values_by(self, names: Sequence[str]) -> list[Any]:
        """Return the values in the order of *names*. A row without names has its values in its own
        order. Raises ValueError if the row has other names."""
        fields = self._fields
        if fields is None or fields == names:
            return list(self._values)
        if sorted(fields) != sorted(names):
            raise ValueError(
                f"{self!r} has the fields {fields}, its declared type has {list(names)}"
            )
        return [self._values[fields.index(name)] for name in names]

    @staticmethod
    def of_kind(row_kind: RowKind, *values: Any) -> Row:
        """Create a row of this kind, by position."""
        row = Row(*values)
        row.set_row_kind(row_kind)
        return row

    def get_row_kind(self) -> RowKind:
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        _set(self, "_row_kind", row_kind)

    def set_field_names(self, field_names: Sequence[str]) -> None:
        _set(self, "_fields", list(field_names))

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Return the values of several fields."""
        return [self[name] for name in names]

    def copy(self) -> Row:
        """Return another row with the same values."""
        row = Row.of(self._fields, list(self._values))
        _set(row, "_row_kind", self._row_kind)
        return row

    def __call__(self, *args: Any) -> Row:
        if len(args) > len(self._values):
            raise ValueError(f"{self!r} makes rows of {len(self._values)} values, got {args!r}")
        return Row.of(list(self._values), list(args))

    def __contains__(self, item: object) -> bool:
        return item in self._values

    def __getitem__(self, item: Any) -> Any:
        if type(item) is int or isinstance(item, (int, slice)):
            return self._values[item]
        return self._values[self._index(item)]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, (int, slice)):
            self._values[key] = value
        else:
            self._values[self._index(key)] = value

    def _index(self, name: Any) -> int:
        if self._fields is not None and name in self._fields:
            return self._fields.index(name)
        fields = "no field names" if self._fields is None else f"the fields {self._fields}"
        raise KeyError(f"no field {name!r}: the row has {fields}")

    def __getattr__(self, item: str) -> Any:
        if item.startswith("_"):
            raise AttributeError(item)
        fields = self._fields
        if fields is None or item not in fields:
            raise AttributeError(f"{self!r} has no field {item!r}")
        return self._values[fields.index(item)]

    def __setattr__(self, key: str, value: Any) -> None:
        if key in Row.__slots__:
            _set(self, key, value)
            return
        raise AttributeError(f"fields are set by row[{key!r}] = value")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._fields, self._values, self._row_kind)

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        pairs = zip(self._fields, self._values, strict=False)
        return f"Row({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Row)
            and self._fields == other._fields
            and self._row_kind is other._row_kind
            and self._values == other._values
        )

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __key_copy__(self, keep: Callable[[Any], Any]) -> Row:
        """Return the copy that state keeps if the row is a key. *keep* makes the copy of each
        value."""
        return _rebuild(self._fields, [keep(value) for value in self._values], self._row_kind)

    def __value_copy__(self, own: Callable[[Any], Any]) -> Row:
        """Return a copy that may be changed independently. *own* copies each mutable value."""
        row = _new(Row)
        _set(row, "_fields", self._fields)
        _set(row, "_values", [v if type(v) in IMMUTABLE else own(v) for v in self._values])
        _set(row, "_row_kind", self._row_kind)
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


_set = object.__setattr__
_new = object.__new__


def _rebuild(fields: list[str] | None, values: list[Any], kind: RowKind) -> Row:
    row = Row.of(fields, values)
    _set(row, "_row_kind", kind)
    return row


_KIND = f"{HIDDEN}kind"
"""Stored field for the kind of rows that are not INSERT."""


class _StoredRows(RecordType):
    def form_of(self, value: Row) -> RecordForm:
        fields, places = value._fields, range(len(value._values))
        is_named = fields is not None and len(fields) == len(places)
        names = tuple(fields) if fields is not None and is_named else tuple(map(str, places))
        if value._row_kind is not RowKind.INSERT:
            names = (*names, _KIND)
        return RecordForm(NAMED_ROWS if is_named else ROWS_BY_POSITION, names)

    def columns(self, form: RecordForm, values: Sequence[Row]) -> list[Sequence[Any]]:
        columns: list[Sequence[Any]] = [
            list(column) for column in zip(*(row._values for row in values), strict=True)
        ]
        if _KIND in form.fields:
            columns.append([row._row_kind.name for row in values])
        return columns

    def change(self, form: RecordForm) -> str | None:
        return None

    def values(self, form: RecordForm, columns: list[list[Any]], number: int) -> list[Any]:
        kinds: Sequence[str] = ()
        names = list(form.fields)
        if _KIND in names:
            place = names.index(_KIND)
            kinds = columns[place]
            names, columns = names[:place], columns[:place]
        fields = names if form.name == NAMED_ROWS else None
        parts = zip(*columns, strict=True) if columns else ((),) * number
        rows = [Row.of(fields, list(values)) for values in parts]
        for row, kind in zip(rows, kinds, strict=False):
            row.set_row_kind(RowKind[kind])
        return rows


register_record_type(Row, _StoredRows(), NAMED_ROWS, ROWS_BY_POSITION)


def pack_rows(rows: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return rows with equal fields as one tuple, which is fast to pickle.
    None: some values are no rows, or have other fields."""
    if set(map(type, rows)) != {Row}:
        return None
    fields = rows[0]._fields
    changes = False
    for row in rows:
        if row._fields is not fields and row._fields != fields:
            return None
        changes = changes or row._row_kind is not RowKind.INSERT
    kinds = [row._row_kind.value for row in rows] if changes else None
    return fields, [row._values for row in rows], kinds


def unpack_rows(packed: tuple[Any, ...]) -> list[Row]:
    fields, values, kinds = packed
    of = Row.of
    rows = [of(fields, row) for row in values]
    if kinds:
        for row, kind in zip(rows, kinds, strict=True):
            row.set_row_kind(RowKind(kind))
    return rows


def _as_plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_as_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_plain(item) for key, item in value.items()}
    return value
