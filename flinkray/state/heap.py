"""Keyed state on the heap: one dictionary per state name.

The state of the current key is found by ``table[context.key]``: whoever drives an operator sets
``context.key`` before it calls user code.  Where state also has a namespace (a window), a second
context holds ``(key, namespace)`` as its key, so that the same handles serve both.  Key groups
cost nothing while records flow; entries are sorted into them when a snapshot is taken.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.heap_handles import (
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
    KeyContext,
)
from flinkray.state.key_values import as_key
from flinkray.state.keys import KeyGroupAssigner, KeyGroupRange
from flinkray.state.ttl_handles import ttl_handle


@dataclass
class StateTable:
    """All entries of one state: by key, or by (key, namespace)."""

    descriptor: StateDescriptor
    namespaced: bool
    entries: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyedSnapshot:
    """A point in time of a backend: for every state, its pickled entries by key group."""

    states: Mapping[str, tuple[str, bool, Mapping[int, bytes]]]
    """Name -> (kind, namespaced, key group -> pickled list of (key, value) pairs)."""


class HeapKeyedStateBackend:
    """The keyed state of one operator's subtask.

    Args:
        max_parallelism: number of key groups.
        key_groups: those that belong to this subtask.
        now: processing time in milliseconds, for time to live.
    """

    def __init__(
        self,
        max_parallelism: int = 128,
        key_groups: KeyGroupRange | None = None,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.context = KeyContext()
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups or KeyGroupRange(0, max_parallelism - 1)
        self._now = now
        self._tables: dict[str, StateTable] = {}
        self._restored: dict[str, tuple[str, bool, dict[Any, Any]]] = {}
        self._handles: dict[tuple[str, int], Any] = {}

    def state(self, descriptor: StateDescriptor, context: KeyContext | None = None) -> Any:
        """The handle of a state, made at its first use.

        Args:
            context: where the handle finds its key; the backend's own if None.  With another one,
                keys are (key, namespace) pairs.

        Raises:
            StateError: the name is in use for another kind of state.
        """
        namespaced = context is not None and context is not self.context
        table = self._table(descriptor, namespaced)
        where = context or self.context
        handle = self._handles.get((descriptor.name, id(where)))
        if handle is None:
            handle = self._make_handle(descriptor, table.entries, where)
            self._handles[descriptor.name, id(where)] = handle
        return handle

    def entries(self, descriptor: StateDescriptor) -> dict[Any, Any]:
        """The dictionary behind a state, by key: for operators that keep state of their own."""
        return self._table(descriptor, False).entries

    def namespaced_entries(self, descriptor: StateDescriptor) -> dict[Any, Any]:
        """The same by (key, namespace)."""
        return self._table(descriptor, True).entries

    def _table(self, descriptor: StateDescriptor, namespaced: bool) -> StateTable:
        table = self._tables.get(descriptor.name)
        if table is None:
            table = StateTable(descriptor, namespaced)
            if descriptor.name in self._restored:
                kind, was_namespaced, entries = self._restored[descriptor.name]
                self._check(descriptor, namespaced, kind, was_namespaced)
                table.entries = entries
                del self._restored[descriptor.name]
            self._tables[descriptor.name] = table
        else:
            self._check(descriptor, namespaced, table.descriptor.kind, table.namespaced)
        return table

    @staticmethod
    def _check(descriptor: StateDescriptor, namespaced: bool, kind: str, was: bool) -> None:
        if kind != descriptor.kind or was != namespaced:
            raise StateError(
                f"state {descriptor.name!r} is {'per-window ' if was else ''}{kind} state here and "
                f"is asked for as {'per-window ' if namespaced else ''}{descriptor.kind} state: "
                "give one of the two another name"
            )

    def _make_handle(
        self, descriptor: StateDescriptor, entries: dict[Any, Any], context: KeyContext
    ) -> Any:
        if descriptor.ttl_config is not None:
            if self._now is None:
                raise StateError(f"state {descriptor.name!r}: time to live needs a clock")
            return ttl_handle(descriptor, entries, context, descriptor.ttl_config, self._now)
        if isinstance(descriptor, ValueStateDescriptor):
            return HeapValueState(entries, context, descriptor.default_value)
        if isinstance(descriptor, ListStateDescriptor):
            return HeapListState(entries, context)
        if isinstance(descriptor, MapStateDescriptor):
            return HeapMapState(entries, context)
        if isinstance(descriptor, ReducingStateDescriptor):
            return HeapReducingState(entries, context, descriptor.reduce)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return HeapAggregatingState(entries, context, descriptor.agg_function)
        raise StateError(f"there is no keyed state for {descriptor!r}")

    def clear(self) -> None:
        """Forget everything that is stored; handles stay good."""
        for table in self._tables.values():
            table.entries.clear()

    def merge_namespaces(
        self, descriptor: StateDescriptor, key: Any, target: Any, sources: Iterable[Any]
    ) -> None:
        """Move what the *sources* hold for *key* into *target*, in the order given (windows that
        merge).  Value and map state cannot be merged."""
        entries = self._table(descriptor, True).entries
        parts = [entries.pop((key, source)) for source in sources if (key, source) in entries]
        if not parts:
            return
        if (key, target) in entries:
            parts.insert(0, entries[key, target])
        merged = parts[0]
        for part in parts[1:]:
            if isinstance(descriptor, ListStateDescriptor):
                merged = [*merged, *part]
            elif isinstance(descriptor, ReducingStateDescriptor):
                merged = descriptor.reduce(merged, part)
            elif isinstance(descriptor, AggregatingStateDescriptor):
                merged = descriptor.agg_function.merge(merged, part)
            else:
                raise StateError(f"{descriptor.kind} state {descriptor.name!r} cannot be merged")
        entries[key, target] = merged

    def names(self) -> list[str]:
        """The states there are, restored ones that nobody has asked for yet included."""
        return [*self._tables, *self._restored]

    def number_of_entries(self, name: str) -> int:
        """How many keys have something stored under *name*."""
        return len(self._tables[name].entries) if name in self._tables else 0

    def keys(self, name: str) -> Iterator[Any]:
        """The keys that have something stored under *name* (a snapshot of them)."""
        table = self._tables.get(name)
        if table is None:
            return iter(())
        if table.namespaced:
            return iter(list(dict.fromkeys(key for key, _ in table.entries)))
        return iter(list(table.entries))

    def snapshot(self) -> KeyedSnapshot:
        """A point in time: what changes afterwards, in place too, is not in it."""
        key_group = KeyGroupAssigner(self.max_parallelism)
        states = {}
        for name, table in self._tables.items():
            states[name] = _by_key_group(
                table.descriptor.kind, table.namespaced, table.entries, key_group
            )
        for name, (kind, namespaced, entries) in self._restored.items():
            states[name] = _by_key_group(kind, namespaced, entries, key_group)
        return KeyedSnapshot(states)

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Take over the entries of this subtask's key groups, before any state is asked for."""
        if self._tables:
            raise StateError("a backend is restored before its states are used, not afterwards")
        for snapshot in snapshots:
            for name, (kind, namespaced, groups) in snapshot.states.items():
                known = self._restored.setdefault(name, (kind, namespaced, {}))
                for group, payload in groups.items():
                    if group in self.key_groups:
                        known[2].update(_kept(pickle.loads(payload), namespaced))


def _kept(entries: list[tuple[Any, Any]], namespaced: bool) -> Iterator[tuple[Any, Any]]:
    """With keys that a dictionary finds: those that were pickled are other objects."""
    for key, value in entries:
        yield ((as_key(key[0]), key[1]) if namespaced else as_key(key)), value


def _by_key_group(
    kind: str, namespaced: bool, entries: dict[Any, Any], key_group: KeyGroupAssigner
) -> tuple[str, bool, Mapping[int, bytes]]:
    groups: dict[int, list[tuple[Any, Any]]] = {}
    for entry in entries.items():
        key = entry[0][0] if namespaced else entry[0]
        groups.setdefault(key_group(key), []).append(entry)
    # Pickling now, not later, is what makes it exact: values may be changed in place afterwards.
    return kind, namespaced, {group: pickle.dumps(part, 5) for group, part in groups.items()}
