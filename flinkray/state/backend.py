"""The interface between operators and the backends that keep keyed state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.columnar_table import ColumnarArrayState, ColumnarTable
from flinkray.state.descriptors import (
    AggregatingStateDescriptor,
    ArrayStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.expiry import MOST, PORTION, Expiry, expiring
from flinkray.state.handles import (
    TableAggregatingState,
    TableListState,
    TableMapState,
    TableReducingState,
    TableValueState,
)
from flinkray.state.interfaces import ArrayState, ReducingState, ValueState
from flinkray.state.key_group_assignment import KeyGroupAssigner, KeyHash, stable_hash
from flinkray.state.key_values import as_key
from flinkray.state.row_table import ColumnarTables, KeysOf, RowTable
from flinkray.state.snapshots import (
    KeyedSnapshot,
    Payload,
    RestoredTable,
    SnapshotStream,
    StateCapture,
)
from flinkray.state.state_serializer import check_key_groups, read_timers
from flinkray.state.table import (
    MISSING,
    KeyContext,
    ListTable,
    MapTable,
    StateTable,
    TimerQueue,
    ValueTable,
)
from flinkray.state.thread_turns import first_turn

TableT_co = TypeVar("TableT_co", bound=StateTable, covariant=True, default=StateTable)
RestoredT = TypeVar("RestoredT", bound=RestoredTable[Any], default=Any)

Schedule = Callable[[int, Callable[[int], None]], Any]
"""Function that schedules a call in the task's thread at a processing time (milliseconds)."""

Publish = Callable[[StateDescriptor, StateTable], None]
"""Function that makes a state queryable; called in the task's thread at its first request."""

ARRAYS = "arrays"
"""Name of the table that holds all array states."""

KINDS = frozenset({"value", "reducing", "aggregating", "list", "map"})
"""Kinds of keyed state, as descriptors name them."""

_SHORTEST_PAUSE = 50
_LONGEST_PAUSE = 60_000
"""With ``_SHORTEST_PAUSE``: bounds in ms of the pause between two searches for expired values."""


class KeyedStateBackend(ABC, Generic[TableT_co, RestoredT]):
    """The keyed state of one subtask of an operator. Only the task's thread calls it.
    *key_groups*: the subtask's key groups; None: all. *now* returns processing time in
    milliseconds. *schedule* schedules the removal of expired values; None: they are removed on
    access only. *hash_of*: hash function from which key groups of keys are computed."""

    def __init__(
        self,
        max_parallelism: int = 128,
        key_groups: KeyGroupRange | None = None,
        now: Callable[[], int] | None = None,
        schedule: Schedule | None = None,
        hash_of: KeyHash = stable_hash,
    ) -> None:
        self.context = KeyContext()
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups or KeyGroupRange(0, max_parallelism - 1)
        self.hash_of = hash_of
        self._tables: dict[str, TableT_co] = {}
        self._restored: dict[str, RestoredT] = {}
        self._columnar = ColumnarTables()
        self._known: Collection[int] | None = None
        """Ids of captures to which later captures may refer."""
        self.publish: Publish | None = None
        """Called for each queryable state; None if there are no queries."""
        self._published: dict[str, str] = {}
        """Name of each published state, by the name under which the state is queried."""
        self.now: Callable[[], int] = now or _beginning
        self._has_clock = now is not None
        self._schedule = schedule
        self._handles: dict[tuple[str, int], Any] = {}
        self._expiries: dict[str, Expiry] = {}
        self._search: Iterator[None] | None = None
        self._searched = (0, 0)
        """Numbers of values at the start of the previous search and of the current search."""
        self._moment = 0
        self._per_record = 0
        self._due = 0

    # --- what a backend does ------------------------------------------------------------------

    @abstractmethod
    def _make_table(
        self, descriptor: StateDescriptor, namespaced: bool, restored: RestoredT | None
    ) -> TableT_co:
        """Return a new table for the state that *descriptor* describes, with the contents of
        *restored* (None: empty). *namespaced*: whether there are contents for each key and window.
        """

    @abstractmethod
    def timer_queue(self, name: str) -> TimerQueue:
        """Return the timer queue *name*; its timers are part of the keyed state."""

    @abstractmethod
    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> StateCapture:
        """Capture the state at this moment; any thread can write the returned capture later.

        Args:
            checkpoint_id: id by which later captures refer to this one; ids rise. None: no later
                capture refers to this one.
            since: id of an earlier capture that is certain to be restored together with this one.
                Only changes since that capture are captured, and later calls name no capture before
                it. Captures between the two may have failed. None or an unknown id: the whole state
                is captured.
        """

    @abstractmethod
    def restore(
        self, snapshots: Iterable[SnapshotStream], checkpoint_id: int | None = None
    ) -> None:
        """Take over the state of this subtask's key groups from *snapshots*, before any state is
        requested. A snapshot of changes comes after the snapshots to which the changes apply. Later
        captures may hold only changes since *checkpoint_id*, the checkpoint that is restored; None:
        the next capture holds the whole state."""

    def close(self) -> None:
        """Release what the backend holds outside of memory, such as files. Captures that were made
        before can still be written."""

    # --- what all have in common --------------------------------------------------------------

    def table(self, descriptor: StateDescriptor, namespaced: bool = False) -> TableT_co:
        """Return the table of a state; it is created at its first use.
        Raises StateError if the name is in use for another kind of state."""
        name = descriptor.name
        table = self._tables.get(name)
        if table is not None:
            check_use(descriptor, namespaced, table.descriptor.kind, table.namespaced)
            return table
        if descriptor.kind not in KINDS:
            raise StateError(f"there is no keyed state for {descriptor!r}")
        restored = self._restored.get(name)
        if restored is not None:
            check_use(descriptor, namespaced, restored.kind, restored.namespaced)
        with nullcontext() if restored is None else first_turn():
            table = self._tables[name] = self._make_table(descriptor, namespaced, restored)
        self._restored.pop(name, None)
        return table

    def columns(self, name: str = ARRAYS, namespaced: bool = False) -> ColumnarTable:
        """Return a table of numbers (see ``columnar_table``); it is created at its first use.
        The default name is that of the table for all array states of the operator. Raises
        StateError if another kind of state was stored under that name."""
        return self._columnar.columns(name, namespaced, self._assigner(), self._known or ())

    def rows(self, name: str, namespaced: bool = False, keys_of: KeysOf | None = None) -> RowTable:
        """Return the table of rows *name* (see ``row_table``), which is created at its first use.
        *keys_of*: returns the column of keys of a batch of rows; None: keys are given with the
        rows. Raises StateError if another kind of state was stored under that name."""
        return self._columnar.rows(name, namespaced, keys_of, self._assigner(), self._known or ())

    def names(self) -> list[str]:
        """Return the names of all tables: those in use, and restored ones not requested yet."""
        return [*self._tables, *self._restored]

    def tables(self) -> Iterable[TableT_co]:
        """Return the tables that are in use."""
        return self._tables.values()

    def _assigner(self) -> KeyGroupAssigner:
        return KeyGroupAssigner(self.max_parallelism, self.hash_of)

    def _check_unused(self) -> None:
        if self._tables or self._columnar:
            raise StateError("a backend is restored before its states are used, not afterwards")

    def _restore_timers(self, name: str, payloads: Iterable[tuple[int, Payload]]) -> None:
        """Add stored timers, given as (key group, payload), to a queue."""
        queue, assign = self.timer_queue(name), self._assigner()
        for group, payload in payloads:
            restored = read_timers(name, payload)
            keys = [key for _, key, _ in restored]
            check_key_groups(f"a timer of {name!r}", keys, group, assign)
            for timestamp, key, namespace in restored:
                queue.add(timestamp, as_key(key), namespace)

    def value_table(self, descriptor: StateDescriptor, namespaced: bool = False) -> ValueTable:
        table = self.table(descriptor, namespaced)
        assert isinstance(table, ValueTable)
        return table

    def list_table(self, descriptor: StateDescriptor, namespaced: bool = False) -> ListTable:
        table = self.table(descriptor, namespaced)
        assert isinstance(table, ListTable)
        return table

    def map_table(self, descriptor: StateDescriptor, namespaced: bool = False) -> MapTable:
        table = self.table(descriptor, namespaced)
        assert isinstance(table, MapTable)
        return table

    def array_state(self, descriptor: ArrayStateDescriptor) -> ArrayState:
        """Return the handle of an array state.
        Raises StateError if the name is in use for another type."""
        columns = self.columns()
        columns.column(descriptor.name, descriptor.dtype, descriptor.default_value)
        return ColumnarArrayState(columns, descriptor.name)

    def state(self, descriptor: StateDescriptor, context: KeyContext | None = None) -> Any:
        """Return the handle of a state; table and handle are created at their first use.
        *context*: the object from which the handle reads the current key. None: the backend's own
        context. With another context, its keys are (key, namespace) pairs. Raises StateError if the
        name is in use for another kind of state."""
        namespaced = context is not None and context is not self.context
        table = self.table(descriptor, namespaced)
        where = context or self.context
        handle = self._handles.get((descriptor.name, id(where)))
        if handle is None:
            handle = self._make_handle(descriptor, table, where)
            self._handles[descriptor.name, id(where)] = handle
            if self.publish is not None:
                self._publish(descriptor, table, self.publish)
        return handle

    def _publish(self, descriptor: StateDescriptor, table: StateTable, publish: Publish) -> None:
        """Make a state queryable if its descriptor asks for it; a second call has no effect.
        Raises StateError if another state has its queryable name."""
        wanted = descriptor.get_queryable_state_name()
        if wanted is None:
            return
        known = self._published.get(wanted)
        if known is None:
            self._published[wanted] = descriptor.name
            publish(descriptor, table)
        elif known != descriptor.name:
            raise StateError(
                f"states {known!r} and {descriptor.name!r} are both queryable as {wanted!r}: give "
                "one of the two another name in set_queryable"
            )

    def _make_handle(
        self, descriptor: StateDescriptor, table: StateTable, context: KeyContext
    ) -> Any:
        expiry = self._expiry_of(descriptor, table)
        contents: Any = table if expiry is None else expiring(table, expiry)
        if isinstance(descriptor, ListStateDescriptor):
            return TableListState(contents, context)
        if isinstance(descriptor, MapStateDescriptor):
            return TableMapState(contents, context)
        if isinstance(descriptor, ReducingStateDescriptor):
            if expiry is None:
                return self.reducing_state(contents, context, descriptor.reduce)
            return TableReducingState(contents, context, descriptor.reduce)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return TableAggregatingState(contents, context, descriptor.agg_function)
        assert isinstance(descriptor, ValueStateDescriptor)
        if expiry is None:
            return self.value_state(contents, context, descriptor.default_value)
        return TableValueState(contents, context, descriptor.default_value)

    def value_state(self, table: ValueTable, context: KeyContext, default: Any) -> ValueState[Any]:
        """Return a new handle of a value state; backends may override this."""
        return TableValueState(table, context, default)

    def reducing_state(
        self, table: ValueTable, context: KeyContext, reduce: Callable[[Any, Any], Any]
    ) -> ReducingState[Any]:
        """Return a new handle of a reducing state; backends may override this."""
        return TableReducingState(table, context, reduce)

    def merge_namespaces(
        self, descriptor: StateDescriptor, key: Any, target: Any, sources: Iterable[Any]
    ) -> None:
        """Append or add the contents that *key* has in the windows *sources* to those of the window
        *target*, and remove them from *sources*, because the windows merge. Raises StateError for
        value and map state, which cannot be merged."""
        table = self.table(descriptor, True)
        place = (key, target)
        for other in [(key, source) for source in sources]:
            if other not in table:
                continue
            if isinstance(table, ListTable):
                table.extend(place, table.take(other))
            elif isinstance(table, ValueTable) and descriptor.kind != "value":
                part = table.take(other)
                mine = table.get_to_change(place, MISSING)
                table.put(place, part if mine is MISSING else _merged(descriptor, mine, part))
            else:
                raise StateError(f"{descriptor.kind} state {descriptor.name!r} cannot be merged")

    def snapshot(self) -> KeyedSnapshot:
        return self.capture().write()

    def clear(self) -> None:
        """Remove the contents of all tables in use, not the timers. Handles of state stay valid."""
        for table in self.tables():
            table.clear()

    def number_of_entries(self, name: str) -> int:
        """Return the number of keys with contents in the state *name*.
        For state of windows: the number of (key, window) pairs."""
        return sum(len(table) for table in self.tables() if table.descriptor.name == name)

    def keys(self, name: str) -> Iterator[Any]:
        """Return an iterator over the keys that have contents in the state *name* at the time of
        the call. Empty if the state is not in use."""
        for table in self.tables():
            if table.descriptor.name == name:
                places = table.places()
                return iter(dict.fromkeys(key for key, _ in places)) if table.namespaced else places
        return iter(())

    # --- time to live -------------------------------------------------------------------------

    def _expiry_of(self, descriptor: StateDescriptor, table: StateTable) -> Expiry | None:
        config = descriptor.ttl_config
        if config is None:
            return None
        if not self._has_clock:
            raise StateError(f"state {descriptor.name!r}: time to live needs a clock")
        expiry = self._expiries.get(descriptor.name)
        if expiry is None:
            expiry = Expiry(table, config, self.now, self.clean)
            self._expiries[descriptor.name] = expiry
            self._per_record = max(self._per_record, expiry.per_record)
            if expiry.in_background:
                self._clean_later()
        return expiry

    def clean(self, portion: int = PORTION) -> int:
        """Examine up to *portion* values of expiring states, and remove expired values.
        The search continues where the last call stopped. Returns how many values were examined;
        fewer than *portion* at the end of the state."""
        self._moment = self.now()
        if self._search is None:
            self._search = self._search_again()
        looked_at = 0
        for _ in self._search:
            looked_at += 1
            if looked_at == portion:
                return looked_at
        self._search = None
        return looked_at

    def _search_again(self) -> Iterator[None]:
        expiries = self._cleaned()
        self._searched = (
            self._searched[1],
            sum(expiry.table.estimated_size() for expiry in expiries),
        )
        for expiry in expiries:
            yield from expiry.clean(lambda: self._moment)

    def _cleaned(self) -> list[Expiry]:
        return [expiry for expiry in self._expiries.values() if expiry.in_background]

    def count_records(self, number: int) -> None:
        """Tell the backend that *number* records were processed. If a state wants expired values
        searched for on every record, this searches from time to time."""
        if self._per_record:
            self._due += self._per_record * number
            if self._due >= PORTION:
                portion, self._due = min(self._due, MOST), 0
                self.clean(portion)

    def _clean_later(self, _: int = 0) -> None:
        """Schedule the next search for expired values. The searches are so frequent that every
        value is examined at least once within the time to live."""
        if self._schedule is None:
            return
        expiries = self._cleaned()
        ttl = min(expiry.ttl for expiry in expiries)
        # Not slower than the last search: values that were just examined would wait too long.
        values = max(*self._searched, sum(expiry.table.estimated_size() for expiry in expiries))
        pause = min(ttl * PORTION // max(values, 10 * PORTION), _LONGEST_PAUSE)
        self._schedule(self.now() + max(pause, _SHORTEST_PAUSE), self._clean_in_background)

    def _clean_in_background(self, _: int) -> None:
        self.clean()
        self._clean_later()


def _beginning() -> int:
    return 0


def _merged(descriptor: StateDescriptor, mine: Any, part: Any) -> Any:
    if descriptor.ttl_config is not None:  # as flinkray.state.expiry stores them
        return _merge(descriptor, mine[0], part[0]), max(mine[1], part[1])
    return _merge(descriptor, mine, part)


def _merge(descriptor: StateDescriptor, mine: Any, part: Any) -> Any:
    if isinstance(descriptor, ReducingStateDescriptor):
        return descriptor.reduce(mine, part)
    assert isinstance(descriptor, AggregatingStateDescriptor)
    return descriptor.agg_function.merge(mine, part)


class KeyedStateBackendFactory(Protocol):
    """Function that creates the backend of one subtask; the arguments are those of
    :class:`KeyedStateBackend`."""

    def __call__(
        self,
        max_parallelism: int,
        key_groups: KeyGroupRange,
        now: Callable[[], int],
        schedule: Schedule,
        hash_of: KeyHash,
    ) -> KeyedStateBackend: ...


def check_use(descriptor: StateDescriptor, namespaced: bool, kind: str, was: bool) -> None:
    """Raise StateError if the existing state of kind *kind* is not what *descriptor* requests.
    *namespaced*: whether contents for each window are requested. *was*: whether the existing state
    has contents for each window."""
    if kind != descriptor.kind or was != namespaced:
        raise StateError(
            f"state {descriptor.name!r} is {'per-window ' if was else ''}{kind} state here and "
            f"is asked for as {'per-window ' if namespaced else ''}{descriptor.kind} state: "
            "give one of the two another name"
        )
