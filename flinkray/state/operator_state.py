"""Operator state: lists of a subtask, and broadcast maps that are the same in every subtask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flinkray.core.values import own
from flinkray.state.descriptors import ListStateDescriptor, MapStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.handles import TableListState, own_entries
from flinkray.state.heap_tables import HeapListTable, HeapMapTable, TableCapture
from flinkray.state.interfaces import BroadcastState, ListState
from flinkray.state.key_context import KeyContext
from flinkray.state.serializers import PICKLE
from flinkray.state.table import MapTable

_ALL = None
"""The place of what belongs to no key."""


class HeapBroadcastState(BroadcastState[Any, Any]):
    """See :class:`BroadcastState`."""

    __slots__ = ("_name", "_read_only", "_table")

    def __init__(self, name: str, table: MapTable, read_only: bool = False) -> None:
        self._name = name
        self._table = table
        self._read_only = read_only

    def read_only(self) -> HeapBroadcastState:
        """The same state; changing it through this handle is an error."""
        return HeapBroadcastState(self._name, self._table, True)

    def _check_writable(self) -> None:
        if self._read_only:
            raise StateError(
                f"broadcast state {self._name!r} is read-only here: only "
                "process_broadcast_element may change it, so that all subtasks agree"
            )

    def get(self, key: Any) -> Any:
        return own(self._table.get(_ALL, key))

    def contains(self, key: Any) -> bool:
        return self._table.contains(_ALL, key)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return [(key, own(value)) for key, value in self._table.items(_ALL)]

    def keys(self) -> Iterable[Any]:
        return [key for key, _ in self._table.items(_ALL)]

    def values(self) -> Iterable[Any]:
        return [own(value) for _, value in self._table.items(_ALL)]

    def is_empty(self) -> bool:
        return _ALL not in self._table

    def put(self, key: Any, value: Any) -> None:
        self._check_writable()
        self._table.put(_ALL, own(key), own(value))

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self._check_writable()
        self._table.put_all(_ALL, own_entries(dict_value))

    def remove(self, key: Any) -> None:
        self._check_writable()
        self._table.remove_entry(_ALL, key)

    def clear(self) -> None:
        self._check_writable()
        self._table.clear()


@dataclass(frozen=True)
class OperatorSnapshot:
    """A point in time: name -> (mode, pickled contents)."""

    states: Mapping[str, tuple[str, bytes]]

    def without_lists(self) -> OperatorSnapshot:
        """For subtasks that are not to have these list elements: the names only, and what every
        subtask has in any case."""
        empty = PICKLE.dumps([])
        return OperatorSnapshot(
            {
                name: (mode, empty if mode == "list" else payload)
                for name, (mode, payload) in self.states.items()
            }
        )


class OperatorCapture:
    """A point in time that is not written yet; the task goes on meanwhile.

    Nothing is copied for it but the list or map that is changed next, once.

    Args:
        states: name -> (mode, captured table).
    """

    def __init__(self, states: Mapping[str, tuple[str, TableCapture]]) -> None:
        self._states = states

    def write(self) -> OperatorSnapshot:
        """Serialise it; from any thread, once."""
        try:
            return OperatorSnapshot(
                {name: (mode, _written(mode, part)) for name, (mode, part) in self._states.items()}
            )
        finally:
            self.release()

    def release(self) -> None:
        """Nobody is going to write it."""
        for _, capture in self._states.values():
            capture.done = True


def _written(mode: str, capture: TableCapture) -> bytes:
    kept, _ = capture.read()
    for _, contents in kept:
        return PICKLE.dumps(contents)
    return PICKLE.dumps({} if mode == "broadcast" else [])


class OperatorStateBackend:
    """The operator state of one subtask.

    Modes are ``list`` (elements are divided among subtasks when the parallelism changes),
    ``union`` (every subtask is given all) and ``broadcast``.
    """

    def __init__(self) -> None:
        self._context = KeyContext(_ALL)
        self._lists: dict[str, tuple[str, HeapListTable]] = {}
        self._broadcast: dict[str, HeapMapTable] = {}

    def list_state(self, descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        return TableListState(self._list(descriptor.name, "list"), self._context)

    def union_list_state(self, descriptor: ListStateDescriptor[Any]) -> ListState[Any]:
        return TableListState(self._list(descriptor.name, "union"), self._context)

    def broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> HeapBroadcastState:
        return HeapBroadcastState(descriptor.name, self._map(descriptor.name))

    def _list(self, name: str, mode: str) -> HeapListTable:
        if name not in self._lists and name not in self._broadcast:
            self._lists[name] = mode, HeapListTable(ListStateDescriptor(name), False, {})
        if name in self._broadcast or self._lists[name][0] != mode:
            raise self._other_mode(name, mode)
        return self._lists[name][1]

    def _map(self, name: str) -> HeapMapTable:
        if name in self._lists:
            raise self._other_mode(name, "broadcast")
        if name not in self._broadcast:
            self._broadcast[name] = HeapMapTable(MapStateDescriptor(name), False, {})
        return self._broadcast[name]

    def _other_mode(self, name: str, mode: str) -> StateError:
        known = "broadcast" if name in self._broadcast else self._lists[name][0]
        return StateError(
            f"operator state {name!r} is {known} state here and is asked for as {mode} state: "
            "give one of the two another name"
        )

    def names(self) -> list[str]:
        return [*self._lists, *self._broadcast]

    def capture(self) -> OperatorCapture | None:
        """This point in time, to be written later, also by another thread; None where there is
        nothing at all."""
        if not self._lists and not self._broadcast:
            return None
        states = {name: (mode, table.capture(False)) for name, (mode, table) in self._lists.items()}
        for name, entries in self._broadcast.items():
            states[name] = ("broadcast", entries.capture(False))
        return OperatorCapture(states)

    def snapshot(self) -> OperatorSnapshot | None:
        """This point in time, written at once; None where there is nothing at all."""
        capture = self.capture()
        return None if capture is None else capture.write()

    def restore(self, snapshots: Iterable[OperatorSnapshot]) -> None:
        """Append the list elements of each, and take over the broadcast entries."""
        for snapshot in snapshots:
            for name, (mode, payload) in snapshot.states.items():
                contents = PICKLE.loads(payload)
                if mode == "broadcast":
                    self._map(name).put_all(_ALL, contents)
                else:
                    self._list(name, mode).extend(_ALL, contents)
