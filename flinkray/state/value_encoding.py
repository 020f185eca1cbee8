"""Encodes the values of state as bytes: many at once, in columns, as msgpack.

Values of one type are one column. For numbers and texts, the column is a list, which msgpack writes
without a call per value, or an array if they come as one (:mod:`flinkray.state.value_columns`). For
tuples, rows and dataclasses, there is a column for each part. For lists and dictionaries, there are
their lengths and one column with all their contents. Values of several types are one column for
each type. All other values are pickled, and the names of their types are recorded.

Rows, dataclasses, named tuples and enumerations are stored by the names of their class and fields.
When values are read, fields that the class lost are dropped, and new fields get their defaults. An
object that occurs twice in a value is read as two equal objects.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pickle
import uuid
import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import msgpack
import numpy as np

from flinkray.core import cloud_pickle
from flinkray.core.values import own
from flinkray.state.errors import StateError, StateMigrationError
from flinkray.state.key_encoding import NAN, NaN
from flinkray.state.program_classes import class_named, is_job, name_of, unpickled
from flinkray.state.snapshots import RecordForm
from flinkray.state.value_columns import (
    ArrayColumn,
    EncodedColumn,
    TupleColumn,
    ValueColumn,
    decode_array,
    divisible,
    values_of,
)

T = TypeVar("T")
Node = list[Any]
"""A column in encoded form: the kind of column, and the data that the kind needs."""

_PLAIN, _UNION, _SCALARS, _TUPLES, _SEQUENCES, _MAPS, _RECORDS, _PICKLED, _ARRAY = range(9)

_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})
_MOST_NESTED = 48
"""Deepest nesting of values; more deeply nested values are pickled (msgpack has a limit, too)."""

_LARGE_INTEGER = 1
"""Code of msgpack's extension type for integers of more than 64 bits."""


class _NotCoveredError(Exception):
    """Raised within the encoder if a class's values cannot be stored by fields, as its form says.
    The values are then stored in a more general form."""


# --- classes with fields ----------------------------------------------------------------------


class RecordType(ABC):
    """Says how values of a class are stored by their fields. A form is the name and the fields that
    the class had when values were stored."""

    @abstractmethod
    def form_of(self, value: Any) -> RecordForm:
        """Return the form of a value: the name and the fields, as its class or the value itself has
        them."""

    @abstractmethod
    def columns(self, form: RecordForm, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return a column for each field of *values*, which all have the form *form*."""

    @abstractmethod
    def change(self, form: RecordForm) -> str | None:
        """Return a text for users that says how the class now differs from its stored *form*; None
        if it does not differ. Raises StateMigrationError if values of that form cannot be read any
        more."""

    @abstractmethod
    def values(self, form: RecordForm, columns: list[list[Any]], number: int) -> list[Any]:
        """Return *number* values, made of the *columns* of the fields in *form*, with the fields
        that the class has now. Inverse of :meth:`columns`."""


_registered: dict[str, RecordType] = {}
"""Record types by the names in stored forms."""
_record_types: dict[type, RecordType | None] = {}
"""Record types by class, as found so far; None: the class has none."""


def register_record_type(kind: type, record_type: RecordType, *names: str) -> None:
    """Store the values of a class with *record_type*, under *names*.
    The names stay the same when the class is moved."""
    _record_types[kind] = record_type
    for name in names:
        _registered[name] = record_type


class _FixedFields(RecordType):
    def __init__(self, kind: type, fields: tuple[str, ...]) -> None:
        self._kind = kind
        self._form = RecordForm(name_of(kind), fields)

    def form_of(self, value: Any) -> RecordForm:
        return self._form

    def change(self, form: RecordForm) -> str | None:
        if form.fields == self._form.fields:
            return None
        was, now = set(form.fields), set(self._form.fields)
        missing = sorted(name for name in now - was if not self.has_default(name))
        if missing:
            raise StateMigrationError(
                f"{form.name} has new fields without defaults: {', '.join(missing)}; give them "
                "defaults, which stored values get"
            )
        changes = [f"without {name}" for name in sorted(was - now)]
        return ", ".join(changes + [f"with {name}" for name in sorted(now - was)]) or "reordered"

    def values(self, form: RecordForm, columns: list[list[Any]], number: int) -> list[Any]:
        self.change(form)
        found = dict(zip(form.fields, columns, strict=True))
        ordered = [
            found[name] if name in found else [self.default(name) for _ in range(number)]
            for name in self._form.fields
        ]
        return self.make(ordered, number)

    @abstractmethod
    def has_default(self, field: str) -> bool: ...

    @abstractmethod
    def default(self, field: str) -> Any: ...

    @abstractmethod
    def make(self, columns: list[list[Any]], number: int) -> list[Any]: ...


class _Dataclass(_FixedFields):
    def __init__(self, kind: Any) -> None:
        fields = dataclasses.fields(kind)
        super().__init__(kind, tuple(field.name for field in fields))
        self._fields = {field.name: field for field in fields}
        self._has_attributes = bool(kind.__dictoffset__)

    def columns(self, form: RecordForm, values: Sequence[Any]) -> list[Sequence[Any]]:
        if self._has_attributes:
            known = self._fields.keys()
            if not all(value.__dict__.keys() <= known for value in values):
                raise _NotCoveredError  # there are attributes other than the fields
        try:
            return [[getattr(value, name) for value in values] for name in form.fields]
        except AttributeError as error:  # a field that was never set
            raise _NotCoveredError from error

    def has_default(self, field: str) -> bool:
        found = self._fields[field]
        missing = dataclasses.MISSING
        return found.default is not missing or found.default_factory is not missing

    def default(self, field: str) -> Any:
        found = self._fields[field]
        if found.default_factory is not dataclasses.MISSING:
            return found.default_factory()
        return own(found.default)

    def make(self, columns: list[list[Any]], number: int) -> list[Any]:
        made: list[Any] = [object.__new__(self._kind) for _ in range(number)]
        for name, column in zip(self._form.fields, columns, strict=True):
            for value, part in zip(made, column, strict=True):
                object.__setattr__(value, name, part)
        return made


class _NamedTuple(_FixedFields):
    def __init__(self, kind: Any) -> None:
        super().__init__(kind, tuple(kind._fields))
        self._make: Callable[[Iterable[Any]], Any] = kind._make
        self._defaults: Mapping[str, Any] = kind._field_defaults

    def columns(self, form: RecordForm, values: Sequence[Any]) -> list[Sequence[Any]]:
        if any(getattr(value, "__dict__", None) for value in values):
            raise _NotCoveredError
        return [list(column) for column in zip(*values, strict=True)]

    def has_default(self, field: str) -> bool:
        return field in self._defaults

    def default(self, field: str) -> Any:
        return own(self._defaults[field])

    def make(self, columns: list[list[Any]], number: int) -> list[Any]:
        if not columns:
            return [self._make(()) for _ in range(number)]
        return list(map(self._make, zip(*columns, strict=True)))


class _Enumeration(RecordType):
    FIELDS = ("name",)

    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind = kind
        self._form = RecordForm(name_of(kind), self.FIELDS)

    def form_of(self, value: Any) -> RecordForm:
        return self._form

    def columns(self, form: RecordForm, values: Sequence[Any]) -> list[Sequence[Any]]:
        names = [value.name for value in values]
        members = self._kind.__members__
        if not all(name in members for name in names):  # a combination of flags
            raise _NotCoveredError
        return [names]

    def change(self, form: RecordForm) -> str | None:
        if form.fields != self.FIELDS:
            raise StateMigrationError(f"{form.name} was no enumeration, and is one now")
        return None

    def values(self, form: RecordForm, columns: list[list[Any]], number: int) -> list[Any]:
        self.change(form)
        try:
            return [self._kind[name] for name in columns[0]]
        except KeyError as error:
            raise StateMigrationError(
                f"{form.name} has no member {error.args[0]!r} any more, and values of it are "
                "stored; bring it back"
            ) from error


def _record_type_of(kind: type) -> RecordType | None:
    if kind not in _record_types:
        _record_types[kind] = _find_record_type(kind)
    return _record_types[kind]


def _find_record_type(kind: Any) -> RecordType | None:
    if not _is_found_by_name(kind):
        return None
    if issubclass(kind, enum.Enum):
        return _Enumeration(kind)
    if issubclass(kind, tuple):
        is_one = hasattr(kind, "_fields") and hasattr(kind, "_make") and not _says_how(kind)
        return _NamedTuple(kind) if is_one else None
    is_dataclass: bool = dataclasses.is_dataclass(kind)
    if not is_dataclass or _says_how(kind) or not _is_of_object(kind):
        return None
    fields = {field.name for field in dataclasses.fields(kind)}
    return _Dataclass(kind) if _slots_of(kind) <= fields else None


def _is_found_by_name(kind: type) -> bool:
    """Return whether another process, or another submission of the program, finds the class by its
    name. False for classes defined in functions."""
    name = name_of(kind)
    if "<locals>" in name:
        return False
    try:
        return class_named(name) is kind
    except (ImportError, AttributeError):
        return False


_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs_ex__")


def _says_how(kind: type) -> bool:
    """Return whether a class defines how its values are pickled, with a method such as
    ``__reduce__``."""
    return any(
        hook in base.__dict__ and getattr(base.__dict__[hook], "__module__", "") != "dataclasses"
        for base in kind.__mro__
        if base not in (object, tuple)
        for hook in _HOOKS
    )


def _slots_of(kind: type) -> set[str]:
    slots: set[str] = set()
    for base in kind.__mro__:
        own_slots = base.__dict__.get("__slots__", ())
        slots.update([own_slots] if isinstance(own_slots, str) else own_slots)
    return slots - {"__dict__", "__weakref__"}


def _is_of_object(kind: type) -> bool:
    """Return whether values of the class consist of attributes alone. A dict also has entries."""
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def record_type_named(name: str) -> RecordType:
    """Return the record type that is registered under the stored name *name*, or that of the class
    with this name. Raises StateMigrationError if the class does not exist any more, or has no
    fields now."""
    found = _registered.get(name)
    if found is None:
        try:
            found = _record_type_of(class_named(name))
        except (ImportError, AttributeError, TypeError) as error:
            raise StateMigrationError(
                f"there is no {name} any more, and values of it are stored: {error}; bring the "
                "class back where it was"
            ) from error
    if found is None:
        raise StateMigrationError(
            f"{name} is no dataclass, named tuple or enumeration any more, and values of it are "
            "stored"
        )
    return found


# --- values that are made of others -----------------------------------------------------------

_Scalar = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]
"""(name, function from value to stored value, inverse function)."""


def _zone_key(zone: zoneinfo.ZoneInfo) -> str:
    if zone.key is None:  # made from a file
        raise _NotCoveredError
    return zone.key


def _builtin_name(kind: type) -> str:
    if kind.__module__ != "builtins" or "." in kind.__qualname__:
        raise _NotCoveredError
    return kind.__qualname__


def _builtin_named(name: str) -> Any:
    return class_named(f"builtins:{name}")


def _datetime_parts(value: datetime.datetime) -> tuple[Any, ...]:
    return (
        *(value.year, value.month, value.day, value.hour, value.minute, value.second),
        *(value.microsecond, value.tzinfo, value.fold),
    )


def _datetime_of(parts: tuple[Any, ...]) -> datetime.datetime:
    return datetime.datetime(*parts[:8], fold=parts[8])


def _time_parts(value: datetime.time) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold


def _time_of(parts: tuple[Any, ...]) -> datetime.time:
    return datetime.time(*parts[:5], fold=parts[5])


def _default_dict_of(parts: tuple[Any, ...]) -> collections.defaultdict[Any, Any]:
    return collections.defaultdict(*parts)


_PLAIN_ARRAYS = "biufcmM"


def _numpy_parts(value: Any) -> tuple[Any, ...]:
    if value.dtype.kind not in _PLAIN_ARRAYS:
        raise _NotCoveredError
    return value.dtype.str, value.shape, value.tobytes()


def _array_of(parts: tuple[Any, ...]) -> Any:
    kind, shape, data = parts
    return np.frombuffer(data, kind).reshape(shape).copy()


def _numpy_scalar_of(parts: tuple[Any, ...]) -> Any:
    return np.frombuffer(parts[2], parts[0])[0]


_NUMPY_SCALAR: _Scalar = ("numpy scalar", _numpy_parts, _numpy_scalar_of)

_SCALAR_TYPES: dict[type, _Scalar] = {
    datetime.date: ("date", datetime.date.toordinal, datetime.date.fromordinal),
    datetime.time: ("time", _time_parts, _time_of),
    datetime.datetime: ("datetime", _datetime_parts, _datetime_of),
    datetime.timedelta: (
        "timedelta",
        lambda value: (value.days, value.seconds, value.microseconds),
        lambda parts: datetime.timedelta(*parts),
    ),
    datetime.timezone: (
        "timezone",
        lambda zone: zone.__getinitargs__(),
        lambda parts: datetime.timezone(*parts),
    ),
    zoneinfo.ZoneInfo: ("ZoneInfo", _zone_key, zoneinfo.ZoneInfo),
    decimal.Decimal: ("Decimal", str, decimal.Decimal),
    fractions.Fraction: (
        "Fraction",
        lambda value: (value.numerator, value.denominator),
        lambda parts: fractions.Fraction(*parts),
    ),
    complex: ("complex", lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    uuid.UUID: ("UUID", lambda value: value.bytes, lambda data: uuid.UUID(bytes=data)),
    bytearray: ("bytearray", bytes, bytearray),
    range: (
        "range",
        lambda value: (value.start, value.stop, value.step),
        lambda parts: range(*parts),
    ),
    type: ("builtin", _builtin_name, _builtin_named),
    NaN: ("NaN", lambda value: None, lambda part: NAN),
    collections.defaultdict: (
        "defaultdict",
        lambda value: (value.default_factory, dict(value)),
        _default_dict_of,
    ),
    collections.deque: (
        "deque",
        lambda value: (list(value), value.maxlen),
        lambda parts: collections.deque(*parts),
    ),
    np.ndarray: ("numpy array", _numpy_parts, _array_of),
}
_SCALARS_BY_NAME = {name: read for name, _, read in (*_SCALAR_TYPES.values(), _NUMPY_SCALAR)}

_SEQUENCE_TYPES: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
}
_SEQUENCES_BY_NAME: dict[str, Callable[[Iterable[Any]], Any]] = {
    name: kind for kind, name in _SEQUENCE_TYPES.items()
}
_MAP_TYPES: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "OrderedDict",
    collections.Counter: "Counter",
}
_MAPS_BY_NAME: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
}


# --- writing ----------------------------------------------------------------------------------


class ValueEncoder:
    """Writes columns of values, and records the types of the values."""

    def __init__(self) -> None:
        self.forms: dict[RecordForm, int] = {}
        """Forms in all columns so far, numbered."""
        self.pickled: set[str] = set()
        """Types that were pickled."""

    def encode(self, values: Sequence[Any] | ValueColumn) -> list[Any]:
        """Return [forms (names of classes and fields) of the records among *values*, the encoded
        column], for :func:`pack`. Raises StateError if a value cannot be stored at all."""
        column = _Column()
        node = column.encode(values, 0)
        for form in column.forms:
            self.forms.setdefault(form, len(self.forms))
        self.pickled |= column.pickled
        return [[[form.name, *form.fields] for form in column.forms], node]


def pack(columns: Any) -> bytes:
    """Return *columns*, nested lists of :meth:`ValueEncoder.encode` results and None, as bytes."""
    packed: bytes = msgpack.packb(columns, default=_pack_integer, unicode_errors="surrogatepass")
    return packed


def _pack_integer(value: Any) -> msgpack.ExtType:
    if type(value) is not int:
        raise TypeError(f"no {type(value).__name__} is in a column")
    size = value.bit_length() // 8 + 1
    return msgpack.ExtType(_LARGE_INTEGER, value.to_bytes(size, "big", signed=True))


class _Column:
    """Encodes the values of one column. Numbers the forms (name and fields) of the records in
    it."""

    def __init__(self) -> None:
        self.forms: dict[RecordForm, int] = {}
        self.pickled: set[str] = set()

    def encode(self, values: Sequence[Any] | ValueColumn, depth: int) -> Node:
        if isinstance(values, ArrayColumn):
            values = divisible(values)
        if isinstance(values, EncodedColumn):
            return [_ARRAY, *values.stored()]
        if isinstance(values, TupleColumn):
            return [_TUPLES, len(values), [self.encode(it, depth + 1) for it in values.parts]]
        if isinstance(values, ValueColumn):
            return self._of_values(values_of(values), depth)
        return self._of_values(values, depth)

    def _of_values(self, values: Sequence[Any], depth: int) -> Node:
        kinds = set(map(type, values))
        if kinds <= _PLAIN_TYPES:
            return [_PLAIN, values if type(values) is list else list(values)]
        if len(kinds) == 1:
            return self._of_one_type(kinds.pop(), values, depth)
        plain: Any = type(None)
        places: dict[type, int] = {}
        columns: list[list[Any]] = []
        which = []
        for value in values:
            kind = type(value)
            if kind in _PLAIN_TYPES:
                kind = plain
            place = places.get(kind)
            if place is None:
                place = places[kind] = len(columns)
                columns.append([])
            columns[place].append(value)
            which.append(place)
        return self._union(which, columns, depth)

    def _union(self, which: list[int], columns: list[list[Any]], depth: int) -> Node:
        return [_UNION, which, [self.encode(column, depth) for column in columns]]

    def _of_one_type(self, kind: type, values: Sequence[Any], depth: int) -> Node:
        if depth < _MOST_NESTED:
            try:
                node = self._covered(kind, values, depth + 1)
            except _NotCoveredError:
                node = None
            if node is not None:
                return node
        return self._pickle(kind, values)

    def _covered(self, kind: type, values: Sequence[Any], depth: int) -> Node | None:
        if kind is tuple:
            sizes = set(map(len, values))
            if len(sizes) == 1:
                columns = zip(*values, strict=True)
                return [_TUPLES, len(values), [self.encode(list(it), depth) for it in columns]]
        name = _SEQUENCE_TYPES.get(kind)
        if name is not None:
            parts = list(chain.from_iterable(values))
            return [_SEQUENCES, name, list(map(len, values)), self.encode(parts, depth)]
        name = _MAP_TYPES.get(kind)
        if name is not None:
            return self._maps(name, values, depth)
        scalar = _SCALAR_TYPES.get(kind)
        if scalar is None and issubclass(kind, np.generic):
            scalar = _NUMPY_SCALAR
        if scalar is not None:
            name, parts_of, _ = scalar
            return [_SCALARS, name, self.encode(list(map(parts_of, values)), depth)]
        record_type = _record_type_of(kind)
        return None if record_type is None else self._records(record_type, values, depth)

    def _maps(self, name: str, values: Sequence[Any], depth: int) -> Node:
        keys = list(chain.from_iterable(values))
        contents = list(chain.from_iterable(value.values() for value in values))
        lengths = list(map(len, values))
        return [_MAPS, name, lengths, self.encode(keys, depth), self.encode(contents, depth)]

    def _records(self, record_type: RecordType, values: Sequence[Any], depth: int) -> Node:
        by_form: dict[RecordForm, list[Any]] = {}
        which: list[RecordForm] = []
        for value in values:
            form = record_type.form_of(value)
            which.append(form)
            by_form.setdefault(form, []).append(value)
        nodes = []
        for form, of_form in by_form.items():
            columns = record_type.columns(form, of_form)
            number = self.forms.setdefault(form, len(self.forms))
            nodes.append(
                [_RECORDS, number, len(of_form), [self.encode(it, depth) for it in columns]]
            )
        if len(nodes) == 1:
            return nodes[0]
        places = {form: place for place, form in enumerate(by_form)}
        return [_UNION, [places[form] for form in which], nodes]

    def _pickle(self, kind: type, values: Sequence[Any]) -> Node:
        try:
            data = cloud_pickle.dumps(list(values), 5)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(
                f"a {kind.__module__}.{kind.__qualname__} cannot be stored: {error}; keep what it "
                "is made from instead"
            ) from error
        self.pickled.add(f"{kind.__module__}.{kind.__qualname__}")
        return [_PICKLED, len(values), data]


# --- reading ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RowChange:
    """How the fields of a row type have changed between its declaration when rows were stored
    (*was*) and now. Fields with names are matched by name, in any order; fields by position have
    the declared order."""

    was: tuple[str, ...]
    now: tuple[str, ...]
    places: tuple[int | None, ...]
    """For each present field its position among the earlier fields; None if the field is new."""
    fields: tuple[TypeChange | None, ...]
    """For each earlier field the change in its values."""

    def fits(self, form: RecordForm) -> bool:
        """Return whether rows that were stored in the form *form* have the fields of *was*, the
        earlier declaration of the row type."""
        shown = [name for name in form.fields if not name.startswith(HIDDEN)]
        if form.name == ROWS_BY_POSITION:
            return len(shown) == len(self.was)
        return form.name == NAMED_ROWS and set(shown) == set(self.was)


@dataclasses.dataclass(frozen=True)
class EntryChange:
    """How the types of a map state's keys and of its values have changed since it was stored."""

    key: TypeChange | None
    value: TypeChange | None


TypeChange = RowChange | EntryChange
"""The difference between the stored and the present declaration of a type."""

NAMED_ROWS, ROWS_BY_POSITION = "Row", "Row by position"
"""Names of forms whose fields are declared with the state."""
HIDDEN = "$"
"""Prefix of field names that belong to the form and not to its declaration; they come last."""


class UnreadableValuesError(StateError):
    """Bytes are not an output of :func:`pack`."""


class ValueDecoder:
    """Reads columns that :class:`ValueEncoder` wrote.
    *change*: the change from the stored to the present declaration. *exactly*: whether a value that
    would have to be migrated raises an error."""

    def __init__(self, change: TypeChange | None = None, exactly: bool = False) -> None:
        self._change = change
        self._exactly = exactly

    def decode(self, column: Any) -> list[Any]:
        """Return the values of an encoded column. Raises StateMigrationError if classes cannot
        be read any more, UnreadableValuesError if the data is not a column."""
        try:
            forms = [RecordForm(name, tuple(fields)) for name, *fields in column[0]]
            if self._exactly:
                check_unchanged(forms)
            return self._decode(column[1], forms, self._change, self._exactly)
        except (ValueError, TypeError, IndexError, KeyError, StopIteration) as error:
            raise UnreadableValuesError(f"these are no values: {error!r}") from error

    def _decode(
        self, node: Node, forms: list[RecordForm], change: TypeChange | None, as_keys: bool
    ) -> list[Any]:
        kind = node[0]
        if kind == _PLAIN:
            plain: list[Any] = node[1]
            return plain
        read = partial(self._decode, forms=forms, change=change, as_keys=as_keys)
        if kind == _UNION:
            columns = [iter(read(column)) for column in node[2]]
            return [next(columns[place]) for place in node[1]]
        if kind == _TUPLES:
            if not node[2]:
                return [()] * node[1]
            return list(zip(*map(read, node[2]), strict=True))
        if kind == _SEQUENCES:
            make = _SEQUENCES_BY_NAME[node[1]]
            parts = iter(read(node[3]))
            return [make(islice(parts, length)) for length in node[2]]
        if kind == _MAPS:
            make_map = _MAPS_BY_NAME[node[1]]
            of_key = of_value = change
            if isinstance(change, EntryChange):
                of_key, of_value = change.key, change.value
            keys = read(node[3], change=of_key, as_keys=True)
            pairs = zip(keys, read(node[4], change=of_value), strict=True)
            return [make_map(islice(pairs, length)) for length in node[2]]
        if kind == _SCALARS:
            return list(map(_SCALARS_BY_NAME[node[1]], read(node[2])))
        if kind == _RECORDS:
            return self._records(node, forms, change, as_keys)
        if kind == _PICKLED:
            return _unpickled(node[2], as_keys)
        if kind == _ARRAY:
            return decode_array(*node[1:])
        raise ValueError(f"there is no column of kind {kind}")

    def _records(
        self, node: Node, forms: list[RecordForm], change: TypeChange | None, as_keys: bool
    ) -> list[Any]:
        _, which, number, nodes = node
        form = forms[which]
        if not isinstance(change, RowChange) or not change.fits(form):
            # the contents of rows other than the declared ones are unknown
            below = None if form.name in (NAMED_ROWS, ROWS_BY_POSITION) else change
            columns = [self._decode(it, forms, below, as_keys) for it in nodes]
            return record_type_named(form.name).values(form, columns, number)
        size, is_named = len(change.was), form.name == NAMED_ROWS
        by_name = dict(zip(form.fields if is_named else change.was, nodes, strict=False))
        columns = [
            [None] * number
            if place is None
            else self._decode(by_name[change.was[place]], forms, change.fields[place], as_keys)
            for place in change.places
        ]
        columns += (self._decode(it, forms, None, as_keys) for it in nodes[size:])
        names = change.now if is_named else tuple(map(str, range(len(change.now))))
        form = RecordForm(form.name, (*names, *form.fields[size:]))
        return record_type_named(form.name).values(form, columns, number)


def _unpickled(data: bytes, as_keys: bool) -> list[Any]:
    try:
        values, made = unpickled(data)
    except (pickle.UnpicklingError, ImportError, AttributeError, TypeError, ValueError) as error:
        raise StateMigrationError(
            f"what was pickled cannot be read: {error}; bring back the class, or the module, that "
            "it is of"
        ) from error
    if as_keys and is_job():
        for kind in made:
            if not _equals_as_builtin(kind):
                raise StateMigrationError(
                    f"there are keys of {name_of(kind)}, and this submission of the program has "
                    "no such class, or several of that name: its functions would find none of "
                    "these keys; have the class at the top level of a module, under the name that "
                    "it had"
                )
    found: list[Any] = values
    return found


def _equals_as_builtin(kind: type) -> bool:
    """Return whether a class has inherited its ``__eq__`` from a builtin type such as ``str``.
    Then a value can equal a value of another class that was made from the same code."""
    return any(
        "__eq__" in base.__dict__ and base is not object and base.__module__ == "builtins"
        for base in kind.__mro__
        if kind.__eq__ is base.__eq__
    )


def check_unchanged(forms: Iterable[RecordForm]) -> None:
    """Raise StateMigrationError if a class has changed since values with one of *forms* (names and
    fields of classes) were stored, so that they would have to be migrated."""
    for form in forms:
        change = record_type_named(form.name).change(form)
        if change is not None:
            raise StateMigrationError(
                f"{form.name} has changed ({change}), and keys and namespaces cannot be migrated: "
                "their hash would be another one; bring back the fields that it had"
            )


def unpack(data: bytes | memoryview) -> Iterator[Any]:
    """Yield each packed object in *data*, which may hold several results of :func:`pack`. Raises
    UnreadableValuesError if the bytes are something else."""
    while data:
        try:
            unpacked = _unpack(data)
        except msgpack.ExtraData as more:
            unpacked, data = more.unpacked, more.extra
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise UnreadableValuesError(f"these are no values: {error!r}") from error
        else:
            data = b""
        yield unpacked


def _unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(
        data, strict_map_key=False, ext_hook=_unpack_integer, unicode_errors="surrogatepass"
    )


def _unpack_integer(code: int, data: bytes) -> int:
    if code != _LARGE_INTEGER:
        raise ValueError(f"there is no extension type {code}")
    return int.from_bytes(data, "big", signed=True)
