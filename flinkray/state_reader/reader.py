"""Reads the state of a checkpoint's operators, one subtask after the other.

After Flink's ``SavepointReader``.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from flinkray.checkpoint.handles import KeyedStateHandle
from flinkray.checkpoint.layout import metadata_path
from flinkray.checkpoint.metadata import CheckpointedOperator
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.checkpoint.state_files import open_state
from flinkray.checkpoint.state_format import (
    read_keyed_state,
    read_keyed_state_header,
    read_operator_state,
)
from flinkray.core.errors import FlinkRayError
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state import KeyedSnapshot
from flinkray.state.snapshots import TableSnapshot, collected
from flinkray.state.state_serializer import StateSerializer, expires, read_timers


class StateNotFoundError(FlinkRayError):
    """A checkpoint lacks the requested operator or state; the text names the existing ones."""


class KeyedEntry(NamedTuple):
    """An entry of a keyed state: the contents for one key, or for one key in one window."""

    key: Any
    namespace: Any
    """The window if the state belongs to windows; None otherwise."""
    value: Any
    """The value; a list in list state, a dict in map state, the accumulator in aggregating
    state."""


class StoredTimer(NamedTuple):
    """A timer in a checkpoint, which had not fired when the checkpoint was taken."""

    timestamp: int
    """Time at which the timer fires, in milliseconds."""
    key: Any
    namespace: Any


class SavepointReader:
    """Reads a checkpoint or savepoint, given by its directory or its metadata file.

    Operators are named by their uid, or by their id (32 hexadecimal digits), which ``flinkray
    checkpoint show`` prints. To read values of the program's own classes, these must be importable.

    Raises:
        CheckpointStorageError: there is no checkpoint, or it cannot be read; the text names the
            file. All methods raise this error, since they read files.
    """

    def __init__(self, location: str) -> None:
        self.location = metadata_path(location)
        self._metadata = read_metadata(location)
        self._operators: dict[str, CheckpointedOperator] = {}
        for operator in self._metadata.operators:
            self._operators[operator.operator_id] = operator
            if operator.uid is not None:
                self._operators[operator.uid] = operator

    @property
    def operators(self) -> list[str]:
        """The uid of each operator in the checkpoint, or else its id, in the order of the job."""
        return [operator.uid or operator.operator_id for operator in self._metadata.operators]

    # --- keyed state ------------------------------------------------------------------------------

    def keyed_states(self, operator: str) -> dict[str, str]:
        """Return the kinds (such as ``value``) of an operator's keyed states, by name."""
        found: dict[str, str] = {}
        for handle in self._keyed_handles(self._operator(operator)):
            for part in handle.parts:
                with open_state(part.location) as state:
                    header = read_keyed_state_header(state)
                found.update((table.name, table.kind) for table in header.tables)
        return found

    def keyed_entries(self, operator: str, state: str) -> Iterator[KeyedEntry]:
        """Yield the entries of a keyed state as Python values, in no particular order.

        Of state with a time to live, expired entries that still exist are included.

        Raises:
            StateNotFoundError: the operator or the state does not exist.
            StateMigrationError: classes of the values cannot be imported, or have changed.
        """
        found = self._operator(operator)
        names = self.keyed_states(operator)
        if state not in names:
            raise _no_state(found, "keyed state", state, names)
        return self._entries(found, state)

    def _entries(self, operator: CheckpointedOperator, state: str) -> Iterator[KeyedEntry]:
        for snapshots in self._keyed_snapshots(operator):
            tables = [s.tables[state] for s in snapshots if state in s.tables]
            yield from _entries_of(state, tables)

    def keyed_state(self, operator: str, state: str) -> pa.Table:
        """Return a keyed state as a table with the columns ``key``, ``namespace`` and ``value``.

        ``namespace`` exists only if the state belongs to windows. Maps become lists of ``key`` and
        ``value``; dataclasses and named tuples become structs.

        Raises:
            StateNotFoundError: as :meth:`keyed_entries`.
            StateMigrationError: as :meth:`keyed_entries`.
            pyarrow.ArrowException: no column can hold the values; use :meth:`keyed_entries`.
        """
        entries = list(self.keyed_entries(operator, state))
        columns = {"key": _column(entry.key for entry in entries)}
        if any(entry.namespace is not None for entry in entries):
            columns["namespace"] = _column(entry.namespace for entry in entries)
        columns["value"] = _column(entry.value for entry in entries)
        return pa.table(columns)

    def timers(self, operator: str) -> dict[str, list[StoredTimer]]:
        """Return the timers of an operator, sorted by time, in one list for each timer queue. The
        queues are named ``event-time`` and ``processing-time``."""
        found: dict[str, list[StoredTimer]] = {}
        for snapshots in self._keyed_snapshots(self._operator(operator)):
            if not snapshots:
                continue
            for queue, groups in snapshots[-1].timers.items():
                timers = found.setdefault(queue, [])
                for payload in groups.values():
                    timers += map(StoredTimer._make, read_timers(queue, payload))
        return {queue: sorted(of, key=lambda it: it.timestamp) for queue, of in found.items()}

    # --- operator state ---------------------------------------------------------------------------

    def operator_states(self, operator: str) -> dict[str, str]:
        """Return the kinds (``list``, ``union`` or ``broadcast``) of an operator's non-keyed
        states, by name."""
        return {
            named.name: named.mode.value
            for subtask in self._operator(operator).subtasks
            for handle in subtask.state.operator_state
            for named in handle.states
        }

    def list_state(self, operator: str, state: str) -> list[Any]:
        """Return the elements that all subtasks have in a list or union state.

        Raises:
            StateNotFoundError: the operator or the state does not exist.
            StateMigrationError: classes of the elements cannot be imported, or have changed.
        """
        return [
            element
            for elements in self._elements(operator, state, ("list", "union"))
            for (element,) in elements
        ]

    def broadcast_state(self, operator: str, state: str) -> dict[Any, Any]:
        """Return the entries of a broadcast state, which are the same in all subtasks.

        Raises:
            StateNotFoundError: the operator or the state does not exist.
            StateMigrationError: classes of keys or values cannot be imported, or have changed.
        """
        return dict(next(iter(self._elements(operator, state, ("broadcast",))), ()))

    def _elements(
        self, operator: str, state: str, kinds: tuple[str, ...]
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield lists that together have all elements of an operator state, of all subtasks.
        *kinds*: the accepted kinds of the state. Raises StateNotFoundError."""
        found = self._operator(operator)
        names = {n: kind for n, kind in self.operator_states(operator).items() if kind in kinds}
        if state not in names:
            raise _no_state(found, f"{' or '.join(kinds)} state", state, names)
        for subtask in found.subtasks:
            for snapshot in read_operator_state(subtask.state.operator_state):
                stored = snapshot.states.get(state)
                if stored is not None:
                    serializer = StateSerializer.as_stored(state, stored.serializer)
                    yield serializer.read_elements(stored.elements)

    # --- handles ----------------------------------------------------------------------------------

    def _operator(self, name: str) -> CheckpointedOperator:
        found = self._operators.get(name)
        if found is None:
            raise StateNotFoundError(
                f"{self.location} has no operator {name!r}; it has "
                f"{', '.join(map(repr, self.operators)) or 'none'}"
            )
        return found

    def _keyed_handles(self, operator: CheckpointedOperator) -> Iterator[KeyedStateHandle]:
        for subtask in operator.subtasks:
            yield from subtask.state.keyed_state

    def _keyed_snapshots(self, operator: CheckpointedOperator) -> Iterator[list[KeyedSnapshot]]:
        """Yield, for each subtask, the list of its keyed snapshots. The first is a whole snapshot;
        each further snapshot has the changes after the one before."""
        everything = KeyGroupRange(0, operator.max_parallelism - 1)
        for handle in self._keyed_handles(operator):
            yield [collected(stored) for stored in read_keyed_state((handle,), everything)]


def _entries_of(name: str, tables: list[TableSnapshot]) -> Iterator[KeyedEntry]:
    """Yield the entries that a keyed state of one subtask has after all snapshots in *tables*.
    *tables*: the state in a whole snapshot, followed by the changes in each later snapshot."""
    entries: dict[Any, KeyedEntry] = {}
    for table in tables:
        serializer = StateSerializer.as_stored(name, table.serializer)
        is_expiring = expires(table.serializer)
        if table.whole:
            entries.clear()
        for payload in table.groups.values():
            for frame in serializer.read(payload):
                for place in _places(frame.removed_keys, frame.removed_namespaces):
                    entries.pop(place, None)
                places = _places(frame.keys, frame.namespaces)
                for place, contents in zip(places, frame.contents, strict=True):
                    value = _without_times(table.kind, contents) if is_expiring else contents
                    entries[place] = KeyedEntry(place.key, place.namespace, value)
    yield from entries.values()


class _Place(NamedTuple):
    key: Any
    namespace: Any


def _places(keys: list[Any], namespaces: list[Any] | None) -> Iterable[_Place]:
    if namespaces is None:
        return (_Place(key, None) for key in keys)
    return map(_Place, keys, namespaces)


def _without_times(kind: str, contents: Any) -> Any:
    """Return the stored contents of one key without the times at which its values were last
    renewed.

    State with a time to live stores these times beside the values. *kind*: kind of the state.
    """
    if kind == "list":
        return [value for value, _ in contents]
    if kind == "map":
        return {key: value for key, (value, _) in contents.items()}
    return contents[0]


def _no_state(
    operator: CheckpointedOperator, kind: str, name: str, names: Iterable[str]
) -> StateNotFoundError:
    known = ", ".join(map(repr, sorted(names))) or "none"
    return StateNotFoundError(
        f"operator {operator.uid or operator.operator_id!r} has no {kind} {name!r}; it has {known}"
    )


# --- columns --------------------------------------------------------------------------------------


def _column(values: Iterable[Any]) -> pa.Array:
    """Return the values as an Arrow array. Raises pyarrow.ArrowInvalid if no Arrow type can hold
    the values, or if Arrow would convert values of different types silently."""
    plain = list(map(_plain, values))
    _check_kinds(plain)
    try:
        return pa.array(plain)
    except OverflowError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _check_kinds(values: list[Any]) -> None:
    """Raise pyarrow.ArrowInvalid if Arrow would convert values silently.

    Arrow does so for texts with bytes, dates with times, and tuples of different lengths.
    """
    kinds = {_kind(value) for value in values if isinstance(value, _MIXED)}
    for alike in _ALIKE:
        if len(alike & kinds) > 1:
            raise pa.ArrowInvalid(f"no column has both {' and '.join(sorted(alike & kinds))}")
    structs = [value for value in values if isinstance(value, dict)]
    sizes = {len(struct) for struct in structs if all(map(str.isdecimal, struct))}
    if len(sizes) > 1:
        raise pa.ArrowInvalid(f"no column has tuples of {' and '.join(map(str, sorted(sizes)))}")
    for name in {name: None for struct in structs for name in struct}:
        _check_kinds([struct[name] for struct in structs if name in struct])
    parts = [part for value in values if isinstance(value, list) for part in value]
    if parts:
        _check_kinds(parts)


_MIXED = (str, bytes, datetime.date)
_ALIKE = (
    {"texts", "bytes"},
    {"days", "times without a zone", "times with a zone"},
)


def _kind(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return f"times {'without' if value.tzinfo is None else 'with'} a zone"
    if isinstance(value, datetime.date):
        return "days"
    return "texts" if isinstance(value, str) else "bytes"


def _plain(value: Any) -> Any:
    """Return a value in a form that Arrow accepts, for example a dataclass as a dict."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(part) for name, part in zip(value._fields, value, strict=True)}
    if hasattr(value, "as_dict") and callable(value.as_dict):
        return {str(name): _plain(part) for name, part in value.as_dict().items()}
    if isinstance(value, dict):
        return [{"key": _plain(key), "value": _plain(part)} for key, part in value.items()]
    if isinstance(value, tuple):
        return {str(place): _plain(part) for place, part in enumerate(value)}
    if isinstance(value, list | set | frozenset):
        return [_plain(part) for part in value]
    return value
