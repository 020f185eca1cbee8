"""Operator state: lists of a subtask, and broadcast maps that are the same in every subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flinkray.core.values import own
from flinkray.state.descriptors import ListStateDescriptor, MapStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.handles import TableListState, own_entries
from flinkray.state.heap_tables import HeapListTable, HeapMapTable, TableCapture
from flinkray.state.interfaces import BroadcastState, ListState
from flinkray.state.key_values import as_key, own_key
from flinkray.state.snapshots import SerializerSnapshot
from flinkray.state.state_serializer import merged
from flinkray.state.table import KeyContext, MapTable, StateTable

_ALL = None
"""The only place (key) in tables of operator state, which belongs to no key."""


class HeapBroadcastState(BroadcastState[Any, Any]):
    """A :class:`BroadcastState` in a table on the heap."""

    __slots__ = ("_name", "_read_only", "_table")

    def __init__(self, name: str, table: MapTable, read_only: bool = False) -> None:
        self._name = name
        self._table = table
        self._read_only = read_only

    def read_only(self) -> HeapBroadcastState:
        """Return a read-only handle of the same state."""
        return HeapBroadcastState(self._name, self._table, True)

    def _check_writable(self) -> None:
        if self._read_only:
            raise StateError(
                f"broadcast state {self._name!r} is read-only here: only "
                "process_broadcast_element may change it, so that all subtasks agree"
            )

    def get(self, key: Any) -> Any:
        return own(self._table.get(_ALL, as_key(key)))

    def contains(self, key: Any) -> bool:
        return self._table.contains(_ALL, as_key(key))

    def items(self) -> Iterable[tuple[Any, Any]]:
        return [(own(key), own(value)) for key, value in self._table.items(_ALL)]

    def keys(self) -> Iterable[Any]:
        return [own(key) for key, _ in self._table.items(_ALL)]

    def values(self) -> Iterable[Any]:
        return [own(value) for _, value in self._table.items(_ALL)]

    def is_empty(self) -> bool:
        return _ALL not in self._table

    def put(self, key: Any, value: Any) -> None:
        self._check_writable()
        self._table.put(_ALL, own_key(key), own(value))

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self._check_writable()
        self._table.put_all(_ALL, own_entries(dict_value))

    def remove(self, key: Any) -> None:
        self._check_writable()
        self._table.remove_entry(_ALL, as_key(key))

    def clear(self) -> None:
        self._check_writable()
        self._table.clear()


@dataclass(frozen=True)
class OperatorStateSnapshot:
    """The contents of one operator state in a snapshot."""

    mode: str
    elements: tuple[bytes, ...]
    """The elements of a list, or the entries of a map, each encoded by itself.
    See :mod:`flinkray.state.state_serializer`."""
    serializer: SerializerSnapshot


@dataclass(frozen=True)
class OperatorSnapshot:
    """The operator state of one subtask at one moment: the state's contents, by name."""

    states: Mapping[str, OperatorStateSnapshot]


class OperatorCapture:
    """The operator state of a subtask at one moment, to be written later while the task changes its
    state. A list or map is copied only if it is changed after the capture. *states*: (mode, table,
    captured table) by name. *restored*: restored states, in stored form, which the program has not
    requested."""

    def __init__(
        self,
        states: Mapping[str, tuple[str, StateTable, TableCapture]],
        restored: Mapping[str, OperatorStateSnapshot],
    ) -> None:
        self._states = states
        self._restored = restored

    def write(self) -> OperatorSnapshot:
        """Return the captured contents, serialised. Call this method once, from any thread."""
        try:
            written = {name: _written(*state) for name, state in self._states.items()}
            return OperatorSnapshot(written | dict(self._restored))
        finally:
            self.release()

    def release(self) -> None:
        for _, _, capture in self._states.values():
            capture.done = True


def _written(mode: str, table: StateTable, capture: TableCapture) -> OperatorStateSnapshot:
    writer = table.serializer.writer()
    elements: list[bytes] = []
    for contents in capture.read().contents:
        if mode == "broadcast":
            elements += (writer.write_element(key, value) for key, value in contents.items())
        else:
            elements += map(writer.write_element, contents)
    return OperatorStateSnapshot(mode, tuple(elements), writer.snapshot())


class OperatorStateBackend:
    """The operator state of one subtask.
    The modes are ``list`` (elements are divided among subtasks when the parallelism changes),
    ``union`` (every subtask gets all elements) and ``broadcast``."""

    def __init__(self) -> None:
        self._context = KeyContext(_ALL)
        self._lists: dict[str, tuple[str, HeapListTable]] = {}
        self._broadcast: dict[str, HeapMapTable] = {}
        self._restored: dict[str, OperatorStateSnapshot] = {}
        """Restored states that are not in use yet."""

    def list_state(self, descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        """Return the handle of a list state; rescaling divides its elements among the subtasks.
        Raises StateMigrationError if the stored state cannot be read as this state."""
        return TableListState(self._list(descriptor, "list"), self._context)

    def union_list_state(self, descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        """Return the handle of a union list state; on restore, each subtask gets all elements.
        Raises StateMigrationError if the stored state cannot be read as this state."""
        return TableListState(self._list(descriptor, "union"), self._context)

    def broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> HeapBroadcastState:
        """Return the handle of a broadcast state, which is the same in all subtasks.
        Raises StateMigrationError if the stored state cannot be read as this state."""
        return HeapBroadcastState(descriptor.name, self._map(descriptor))

    def _list(self, descriptor: ListStateDescriptor[Any], mode: str) -> HeapListTable:
        name = descriptor.name
        self._check_mode(name, mode)
        if name not in self._lists:
            table = HeapListTable(descriptor, False, {})
            self._fill_list(table)
            self._lists[name] = mode, table
        return self._lists[name][1]

    def _map(self, descriptor: MapStateDescriptor[Any, Any]) -> HeapMapTable:
        name = descriptor.name
        self._check_mode(name, "broadcast")
        if name not in self._broadcast:
            table = HeapMapTable(descriptor, False, {})
            self._fill_map(table)
            self._broadcast[name] = table
        return self._broadcast[name]

    def _take_restored(self, table: StateTable) -> list[tuple[Any, ...]]:
        name = table.descriptor.name
        restored = self._restored.get(name)
        if restored is None:
            return []
        table.serializer.check(restored.serializer)
        elements = table.serializer.read_elements(restored.elements)
        del self._restored[name]
        return elements

    def _check_mode(self, name: str, mode: str) -> None:
        known = self._modes().get(name)
        if known not in (None, mode):
            raise StateError(
                f"operator state {name!r} is {known} state here and is asked for as {mode} state: "
                "give one of the two another name"
            )

    def _modes(self) -> dict[str, str]:
        return {
            **{name: mode for name, (mode, _) in self._lists.items()},
            **dict.fromkeys(self._broadcast, "broadcast"),
            **{name: state.mode for name, state in self._restored.items()},
        }

    def names(self) -> list[str]:
        return list(self._modes())

    def capture(self) -> OperatorCapture | None:
        """Capture the state at this moment; any thread can write the returned capture later.
        Returns None if there is no state."""
        if not self._lists and not self._broadcast and not self._restored:
            return None
        states: dict[str, tuple[str, StateTable, TableCapture]] = {
            name: (mode, table, table.capture()) for name, (mode, table) in self._lists.items()
        }
        for name, entries in self._broadcast.items():
            states[name] = ("broadcast", entries, entries.capture())
        return OperatorCapture(states, dict(self._restored))

    def snapshot(self) -> OperatorSnapshot | None:
        capture = self.capture()
        return None if capture is None else capture.write()

    def restore(self, snapshots: Iterable[OperatorSnapshot]) -> None:
        """Take over *snapshots*: append their list elements to the lists, and put their broadcast
        entries into the maps. The contents of a state are read when the state is requested, or at
        once if it is in use. Raises StateMigrationError if a state that is in use cannot be read.
        """
        for snapshot in snapshots:
            for name, state in snapshot.states.items():
                self._check_mode(name, state.mode)
                known = self._restored.get(name)
                if known is not None:
                    state = OperatorStateSnapshot(
                        state.mode,
                        known.elements + state.elements,
                        merged([known.serializer, state.serializer]),
                    )
                self._restored[name] = state
        for _, lists in self._lists.values():
            self._fill_list(lists)
        for entries in self._broadcast.values():
            self._fill_map(entries)

    def _fill_list(self, table: HeapListTable) -> None:
        table.extend(_ALL, [element for (element,) in self._take_restored(table)])

    def _fill_map(self, table: HeapMapTable) -> None:
        entries = {as_key(key): value for key, value in self._take_restored(table)}
        table.put_all(_ALL, entries)


@dataclass(frozen=True)
class StateFile:
    """A file that operator state refers to. A savepoint has a copy of the file."""

    name: str
    """The name by which the operator knows the file."""
    pieces: Callable[[], Iterator[bytes]]
    """Returns an iterator over the bytes of the file, in pieces."""
