"""Serializes state as bytes that contain the information needed to read them.

A *frame* holds what is written together: the declaration of the state, and columns of values
(:mod:`flinkray.state.value_encoding`). Consecutive frames are read one after the other. A state
whose stored and requested declarations differ is migrated (fields of rows, dataclasses and named
tuples that were added or removed), or refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateMigrationError
from flinkray.state.key_group_assignment import KeyGroupAssigner, key_groups_of_array
from flinkray.state.snapshots import SerializerSnapshot
from flinkray.state.value_columns import ValueColumn
from flinkray.state.value_encoding import (
    EntryChange,
    RowChange,
    TypeChange,
    UnreadableValuesError,
    ValueDecoder,
    ValueEncoder,
    check_unchanged,
    pack,
    record_type_named,
    unpack,
)

NAME = "columns"
VERSION = 1


class Frame(NamedTuple):
    """The content of a frame: places (key, or key and window) of a table that were written
    together, with their contents, and places that became empty."""

    keys: list[Any]
    namespaces: list[Any] | None
    contents: list[Any]
    """The contents of each of the keys."""
    removed_keys: list[Any]
    removed_namespaces: list[Any] | None


class StateSerializer:
    """Reads and writes the contents of one state, with the types that its descriptor declares."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._name = descriptor.name
        expires = descriptor.ttl_config is not None
        self._declared: str | None = _declaration(descriptor, expires)
        self._changes: dict[str | None, TypeChange | None] = {}
        """The change to apply to values when reading them, by their stored declaration."""

    @classmethod
    def as_stored(cls, name: str, stored_as: SerializerSnapshot) -> StateSerializer:
        """Return a serializer that reads a state with the types with which it was stored, for
        callers without the state's descriptor. *stored_as*: the description of the state in the
        snapshot."""
        serializer = cls(StateDescriptor(name))
        serializer._declared = stored_as.declared
        return serializer

    @classmethod
    def without_times(cls, descriptor: StateDescriptor) -> StateSerializer:
        """Return a serializer of a state's contents as queries see them: without the renewal times
        that state with a time to live has."""
        serializer = cls(descriptor)
        serializer._declared = _declaration(descriptor, expires=False)
        return serializer

    def writer(self) -> StateFrameWriter:
        return StateFrameWriter(self._declared)

    def check(self, stored_as: SerializerSnapshot) -> None:
        """Raise StateMigrationError if state stored as *stored_as* cannot be read as this state."""
        if stored_as.name != NAME or stored_as.version > VERSION:
            raise self._error(
                f"it was stored by the serializer {stored_as.name} version {stored_as.version}, "
                f"and this flinkray has {NAME} version {VERSION}: use the flinkray that wrote it"
            )
        try:
            for form in stored_as.values:
                record_type_named(form.name).change(form)
            self._change_from(stored_as.declared)
        except StateMigrationError as error:
            raise self._error(str(error)) from error

    def read(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Decode *data*, the stored bytes of a part of a table, and yield its frames.
        Raises StateMigrationError: the frames cannot be read as this state."""
        try:
            yield from self._read(data)
        except (StateMigrationError, UnreadableValuesError) as error:
            raise self._error(str(error)) from error

    def _read(self, data: bytes | memoryview) -> Iterator[Frame]:
        for declared, keys, namespaces, contents, removed, removed_namespaces in unpack(data):
            exactly, values = ValueDecoder(exactly=True), self._decoder(declared)
            yield Frame(
                exactly.decode(keys),
                None if namespaces is None else exactly.decode(namespaces),
                values.decode(contents),
                exactly.decode(removed),
                None if removed_namespaces is None else exactly.decode(removed_namespaces),
            )

    def read_elements(self, elements: Iterable[bytes]) -> list[tuple[Any, ...]]:
        """Return a tuple for each element: the parts that were given to
        :meth:`StateFrameWriter.write_element`. Raises StateMigrationError if the elements cannot be
        read as this state."""
        read: list[tuple[Any, ...]] = []
        try:
            for element in elements:
                for declared, *columns in unpack(element):
                    decoders = self._decoders(declared, len(columns))
                    parts = zip(decoders, columns, strict=True)
                    read.append(tuple(decoder.decode(column)[0] for decoder, column in parts))
        except (StateMigrationError, UnreadableValuesError) as error:
            raise self._error(str(error)) from error
        return read

    def read_column(self, data: bytes) -> list[Any]:
        """Return the contents given to :meth:`StateFrameWriter.write_column`.
        Raises StateMigrationError if they cannot be read as this state, UnreadableValuesError for
        bytes of another format."""
        try:
            [(declared, column)] = unpack(data)
        except (ValueError, TypeError) as error:
            raise UnreadableValuesError(f"state {self._name!r}: these are no values") from error
        try:
            return self._decoder(declared).decode(column)
        except StateMigrationError as error:
            raise self._error(str(error)) from error

    def _decoder(self, declared: str | None) -> ValueDecoder:
        return ValueDecoder(self._change_from(declared))

    def _decoders(self, declared: str | None, number: int) -> list[ValueDecoder]:
        """Return one decoder for each part of an element. An element of a list has one part
        (*number* is 1). An entry of a map has two, key and value. *declared*: the stored
        declaration of the state."""
        change = self._change_from(declared)
        if isinstance(change, EntryChange):
            return [ValueDecoder(change.key), ValueDecoder(change.value)]
        return [ValueDecoder(change)] * number

    def _change_from(self, declared: str | None) -> TypeChange | None:
        if declared not in self._changes:
            self._changes[declared] = _migration(declared, self._declared)
        return self._changes[declared]

    def _error(self, text: str) -> StateMigrationError:
        return StateMigrationError(f"state {self._name!r}: {text}")


Values = Sequence[Any] | ValueColumn

Places = tuple[Values, Values | None]
"""(keys, namespaces). The namespaces are None unless the state belongs to windows."""


class StateFrameWriter:
    """Writes one snapshot of a state; from one thread."""

    def __init__(self, declared: str | None) -> None:
        self._declared = declared
        self._keys = ValueEncoder()
        self._values = ValueEncoder()

    def write(self, places: Places, contents: Values, removed: Places) -> bytes:
        """Return the bytes of a frame: *contents*, one for each of *places*, and the places
        *removed*, which became empty."""
        return pack(
            [
                self._declared,
                *self._places(places),
                self._values.encode(contents),
                *self._places(removed),
            ]
        )

    def _places(self, places: Places) -> list[Any]:
        keys, namespaces = places
        return [
            self._keys.encode(keys),
            None if namespaces is None else self._keys.encode(namespaces),
        ]

    def write_element(self, *parts: Any) -> bytes:
        """Return one element of operator state as bytes.
        *parts*: the element of a list, or the key and the value of a map's entry."""
        return pack([self._declared, *(self._values.encode([part]) for part in parts)])

    def write_column(self, contents: Sequence[Any]) -> bytes:
        return pack([self._declared, self._values.encode(contents)])

    def snapshot(self) -> SerializerSnapshot:
        """Return how the state was written so far: its declared type and the classes of its values.
        Readers need this before they read a frame."""
        pickled = sorted(self._keys.pickled | self._values.pickled)
        keys, values = tuple(self._keys.forms), tuple(self._values.forms)
        return SerializerSnapshot(NAME, VERSION, self._declared, keys, values, tuple(pickled))


def merged(snapshots: Sequence[SerializerSnapshot]) -> SerializerSnapshot:
    """Return one description, of how a state was written, for the frames of several writers."""
    last = snapshots[-1]
    return SerializerSnapshot(
        last.name,
        max(snapshot.version for snapshot in snapshots),
        last.declared,
        tuple(dict.fromkeys(chain.from_iterable(snapshot.keys for snapshot in snapshots))),
        tuple(dict.fromkeys(chain.from_iterable(snapshot.values for snapshot in snapshots))),
        tuple(sorted(set(chain.from_iterable(snapshot.pickled for snapshot in snapshots)))),
    )


def check_keys(name: str, stored_as: SerializerSnapshot) -> None:
    """Raise StateMigrationError if the classes of a state's stored keys have changed."""
    try:
        check_unchanged(stored_as.keys)
    except StateMigrationError as error:
        raise StateMigrationError(f"keys of state {name!r}: {error}") from error


def check_key_groups(
    of: str, keys: Sequence[Any] | pa.Array, key_group: int, assign: KeyGroupAssigner
) -> None:
    """Check that stored keys are still in the key group *key_group*. *of*: name of the state, for
    the error. Raises StateMigrationError if a key is in another group now, where the program would
    not find its contents."""
    try:
        if isinstance(keys, pa.Array):
            groups = key_groups_of_array(keys, assign.max_parallelism, assign.hash_of)
        else:
            groups = assign.of_all(keys)
    except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise of_another_key_type(of, error) from error
    (others,) = np.nonzero(groups != key_group)
    if len(others):
        key = keys[others[0]]
        if isinstance(key, pa.Scalar):
            key = key.as_py()
        raise StateMigrationError(
            f"{of} was stored for {key!r} in key group {key_group}, and that key is in "
            f"key group {groups[others[0]]} now, where it would not be found: give key_by the "
            "key_type that it had (or none, if it had none), and with_keyed_state of a "
            "SavepointWriter the one that key_by has"
        )


def of_another_key_type(of: str, error: Exception) -> StateMigrationError:
    """Return the error for stored keys that do not fit the key type declared now.
    *of*: names the state in the error's text."""
    return StateMigrationError(
        f"{of} was stored for keys that are not of the key_type of key_by: {error}; give key_by "
        "the key_type that it had"
    )


# --- timers -----------------------------------------------------------------------------------


def write_timers(timers: Sequence[tuple[int, Any, Any]]) -> bytes:
    encoder = ValueEncoder()
    columns = [[timer[place] for timer in timers] for place in range(3)]
    return pack([encoder.encode(column) for column in columns])


def read_timers(queue: str, data: bytes | memoryview) -> list[tuple[int, Any, Any]]:
    """Return the timers in *data*, as (time, key, namespace). *queue*: name of their queue, for
    errors. Raises StateMigrationError if classes of their keys have changed."""
    decoder, timers = ValueDecoder(exactly=True), []
    try:
        for columns in unpack(data):
            timers += list(zip(*map(decoder.decode, columns), strict=True))
    except (StateMigrationError, UnreadableValuesError, ValueError) as error:
        raise StateMigrationError(f"timers of {queue!r}: {error}") from error
    return timers


# --- how states are declared --------------------------------------------------------------------


def _declaration(descriptor: StateDescriptor, expires: bool) -> str:
    return json.dumps({"type": _described(descriptor.type_info), "expires": expires})


def expires(stored_as: SerializerSnapshot) -> bool:
    """Return whether each stored value comes with the time of its last renewal."""
    return bool(json.loads(stored_as.declared or "{}").get("expires", False))


def _described(type_info: Any) -> Any:
    """Return a type in a form that can be stored and compared; None if any value is of the type."""
    if type_info is None or getattr(type_info, "is_any", False):
        return None
    if isinstance(type_info, tuple):
        parts = [_described(part) for part in type_info]
        return None if parts == [None] * len(parts) else {"of": parts}
    if hasattr(type_info, "get_field_names"):
        types = [_described(part) for part in type_info.get_field_types()]
        return {"row": [list(it) for it in zip(type_info.get_field_names(), types, strict=True)]}
    if isinstance(type_info, type):
        return f"{type_info.__module__}.{type_info.__qualname__}"
    text = repr(type_info)
    return None if text == object.__repr__(type_info) else text


def _migration(was: str | None, now: str | None) -> TypeChange | None:
    """Return the change that turns values stored with the declaration *was* into values of the
    declaration *now*. None: nothing changes. Raises StateMigrationError if no such change is
    possible."""
    try:
        before, after = json.loads(was or "{}"), json.loads(now or "{}")
        expired = before.get("expires", False)
    except (ValueError, AttributeError) as error:
        raise UnreadableValuesError(f"{was!r} is no declaration of a state") from error
    if expired != after.get("expires", False):
        how = (
            "with time to live, and is asked for without"
            if expired
            else ("without time to live, and is asked for with it")
        )
        raise StateMigrationError(f"it was stored {how}; give the state another name")
    return _change(before.get("type"), after.get("type"))


def _change(was: Any, now: Any) -> TypeChange | None:
    if was is None or now is None or was == now:
        return None
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        if "row" in was:
            return _row_change(was["row"], now["row"])
        if len(was["of"]) == len(now["of"]) == 2:
            (key_was, value_was), (key_now, value_now) = was["of"], now["of"]
            return EntryChange(_change(key_was, key_now), _change(value_was, value_now))
    raise StateMigrationError(
        f"it was stored as {_text(was)} and is asked for as {_text(now)}; give the state another "
        "name, or the type that it had"
    )


def _row_change(was: list[Any], now: list[Any]) -> RowChange:
    """Return the change between two row types, given as (name, type) of their fields.
    Fields are matched by name, or by position if only one of the types has names."""
    before, after = [name for name, _ in was], [name for name, _ in now]
    if _has_names(before) == _has_names(after):
        places = [before.index(name) if name in before else None for name in after]
    else:
        places = [place if place < len(before) else None for place in range(len(after))]
    kinds = {place: kind for place, (_, kind) in zip(places, now, strict=True)}
    fields = [_change(kind, kinds.get(place)) for place, (_, kind) in enumerate(was)]
    return RowChange(tuple(before), tuple(after), tuple(places), tuple(fields))


def _has_names(fields: list[str]) -> bool:
    return fields != [f"f{place}" for place in range(len(fields))]


def _text(kind: Any) -> str:
    if isinstance(kind, dict) and "row" in kind:
        fields = (f"{name}: {_text(part)}" for name, part in kind["row"])
        return f"a row of ({', '.join(fields)})"
    if isinstance(kind, dict):
        return f"({', '.join(map(_text, kind['of']))})"
    return "anything" if kind is None else str(kind)
