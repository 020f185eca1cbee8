"""Operator state: lists of a subtask, and broadcast maps that are the same in every subtask."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flinkray.state.descriptors import ListStateDescriptor, MapStateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.heap_handles import HeapListState, KeyContext
from flinkray.state.interfaces import BroadcastState


class HeapBroadcastState(BroadcastState[Any, Any]):
    """See :class:`BroadcastState`."""

    __slots__ = ("_entries", "_name", "_read_only")

    def __init__(self, name: str, entries: dict[Any, Any], read_only: bool = False) -> None:
        self._name = name
        self._entries = entries
        self._read_only = read_only

    def read_only(self) -> HeapBroadcastState:
        """The same state; changing it through this handle is an error."""
        return HeapBroadcastState(self._name, self._entries, True)

    def _check_writable(self) -> None:
        if self._read_only:
            raise StateError(
                f"broadcast state {self._name!r} is read-only here: only "
                "process_broadcast_element may change it, so that all subtasks agree"
            )

    def get(self, key: Any) -> Any:
        return self._entries.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def items(self) -> Iterable[tuple[Any, Any]]:
        return list(self._entries.items())

    def keys(self) -> Iterable[Any]:
        return list(self._entries)

    def values(self) -> Iterable[Any]:
        return list(self._entries.values())

    def is_empty(self) -> bool:
        return not self._entries

    def put(self, key: Any, value: Any) -> None:
        self._check_writable()
        self._entries[key] = value

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self._check_writable()
        self._entries.update(dict_value)

    def remove(self, key: Any) -> None:
        self._check_writable()
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._check_writable()
        self._entries.clear()


@dataclass(frozen=True)
class OperatorSnapshot:
    """A point in time: name -> (mode, pickled contents)."""

    states: Mapping[str, tuple[str, bytes]]

    def without_lists(self) -> OperatorSnapshot:
        """For subtasks that are not to have these list elements: the names only, and what every
        subtask has in any case."""
        empty = pickle.dumps([], 5)
        return OperatorSnapshot(
            {
                name: (mode, empty if mode == "list" else payload)
                for name, (mode, payload) in self.states.items()
            }
        )


class OperatorStateBackend:
    """The operator state of one subtask.

    Modes are ``list`` (elements are divided among subtasks when the parallelism changes),
    ``union`` (every subtask is given all) and ``broadcast``.
    """

    def __init__(self) -> None:
        self._context = KeyContext(None)  # one for all
        self._lists: dict[str, tuple[str, dict[Any, Any]]] = {}
        self._broadcast: dict[str, dict[Any, Any]] = {}

    def list_state(self, descriptor: ListStateDescriptor[Any]) -> HeapListState:
        return self._list(descriptor, "list")

    def union_list_state(self, descriptor: ListStateDescriptor[Any]) -> HeapListState:
        return self._list(descriptor, "union")

    def broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> HeapBroadcastState:
        if descriptor.name in self._lists:
            raise self._other_mode(descriptor.name, "broadcast")
        entries = self._broadcast.setdefault(descriptor.name, {})
        return HeapBroadcastState(descriptor.name, entries)

    def _list(self, descriptor: ListStateDescriptor[Any], mode: str) -> HeapListState:
        if descriptor.name in self._broadcast:
            raise self._other_mode(descriptor.name, mode)
        known, table = self._lists.setdefault(descriptor.name, (mode, {}))
        if known != mode:
            raise self._other_mode(descriptor.name, mode)
        return HeapListState(table, self._context)

    def _other_mode(self, name: str, mode: str) -> StateError:
        known = "broadcast" if name in self._broadcast else self._lists[name][0]
        return StateError(
            f"operator state {name!r} is {known} state here and is asked for as {mode} state: "
            "give one of the two another name"
        )

    def names(self) -> list[str]:
        return [*self._lists, *self._broadcast]

    def snapshot(self) -> OperatorSnapshot | None:
        """A point in time, or None where there is nothing at all."""
        if not self._lists and not self._broadcast:
            return None
        states = {
            name: (mode, pickle.dumps(table.get(None, []), 5))
            for name, (mode, table) in self._lists.items()
        }
        for name, entries in self._broadcast.items():
            states[name] = ("broadcast", pickle.dumps(entries, 5))
        return OperatorSnapshot(states)

    def restore(self, snapshots: Iterable[OperatorSnapshot]) -> None:
        """Append the list elements of each, and take over the broadcast entries."""
        for snapshot in snapshots:
            for name, (mode, payload) in snapshot.states.items():
                contents = pickle.loads(payload)
                if mode == "broadcast":
                    self._broadcast.setdefault(name, {}).update(contents)
                else:
                    table = self._lists.setdefault(name, (mode, {}))[1]
                    if contents:
                        table.setdefault(None, []).extend(contents)
