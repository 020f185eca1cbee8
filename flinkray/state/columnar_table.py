"""Keyed state in arrays: each key has a number for each name, at an index called the *slot*.

Keys get slots in the order in which they first occur. If numbers belong to a namespace (a window or
part of a window), each namespace has its own arrays and is removed as a whole. When most of the
known keys are in no namespace any more, these keys are forgotten and the other keys get new slots.
A snapshot is a record batch for each key group, with a column for each name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.state.columnar_snapshots import (
    CaptureLog,
    ColumnarCapture,
    ColumnarFrame,
    RestoredColumns,
    by_group,
)
from flinkray.state.errors import StateError
from flinkray.state.interfaces import ArrayState
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.key_numbers import KeyNumbers, Slots
from flinkray.state.snapshots import ColumnarSnapshot
from flinkray.state.state_serializer import check_key_groups
from flinkray.state.value_encoding import ValueEncoder

NUMBERS = "numbers"
"""The kind that snapshots give for a :class:`ColumnarTable`."""

Numbers = npt.NDArray[Any]
Places = npt.NDArray[np.intp]

_PREFIX = "state."
"""Prefix of the columns in snapshots that hold numbers."""

_FIRST_CAPACITY = 1024
_FORGET_FROM = 4096
"""Number of known keys from which on unused keys are forgotten."""
_ONLY = 0
"""The namespace of tables without namespaces."""

_ABSENT = -1
"""Mark of a slot that does not belong to the namespace."""


@dataclass(frozen=True)
class _Column:
    kind: np.dtype[Any]
    default: Any


class NamespaceArrays:
    """The numbers of one namespace (window): an array for each column, in which the index is the
    key's slot. *first_mark*: mark of all slots at first. The mark of a slot says when the slot was
    last changed (:class:`CaptureLog`)."""

    def __init__(self, table: ColumnarTable, capacity: int, first_mark: int = _ABSENT) -> None:
        self._table = table
        self._first_mark = first_mark
        self._marks = np.full(capacity, first_mark, np.int64)
        """By slot: number of captures before the slot's last change."""
        self._arrays: dict[str, Numbers] = {}
        self._known: dict[str, npt.NDArray[np.bool_]] = {}
        """For restored columns that are not in use yet: whether each slot has a number."""

    def values(self, name: str) -> Numbers:
        """Return the numbers of the column *name*; the index is the slot of the key.
        The array is a view, which may be read and written until keys are added to the table."""
        size = len(self._table)
        if size > len(self._marks):
            self._grow(size)
        return self._arrays[name][:size]

    def first_values(self, name: str) -> Numbers:
        """Return the numbers of the column *name*, for reading only; the index is the slot of the
        key. The array may be too short for the last keys, if none of them is in this namespace."""
        return self._arrays[name][: len(self._table)]

    def touch(self, slots: npt.NDArray[Any]) -> None:
        """Note that the keys with these slots have numbers in this namespace, and that the numbers
        are changed now."""
        self.marks()[slots] = self._table.log.number

    def marks(self) -> npt.NDArray[np.int64]:
        """Return the array in which a caller that changes the number of a slot writes
        ``table.log.number``, as :meth:`touch` does. It may be written until keys are added."""
        size = len(self._table)
        if size > len(self._marks):
            self._grow(size)
        return self._marks[:size]

    def present(self) -> npt.NDArray[np.bool_]:
        """Return, for each slot, whether its key has numbers in this namespace.
        Slots after the end of the array have none."""
        here: npt.NDArray[np.bool_] = self._marks[: len(self._table)] != _ABSENT
        return here

    def convert(self, name: str, column: _Column) -> None:
        """Add a column, or change the type of a column and convert its numbers."""
        array: Numbers = np.full(len(self._marks), column.default, column.kind)
        before, known = self._arrays.get(name), self._known.pop(name, None)
        if before is not None:
            there = np.flatnonzero(self.present())
            if known is not None:
                there = there[known[there]]
            array[there] = before[there]
        self._arrays[name] = array

    def restore(
        self, slots: Slots, numbers: Mapping[str, pa.Array], kinds: Mapping[str, Any]
    ) -> None:
        """Take over restored columns: the numbers of the keys at *slots*. The program has not
        requested the columns yet.
        *kinds*: the type of each column that holds the numbers of all restored frames."""
        self.touch(slots)
        for name, column in numbers.items():
            if name not in self._arrays:
                self._arrays[name] = np.zeros(len(self._marks), kinds[name])
                self._known[name] = np.zeros(len(self._marks), np.bool_)
            there = slots[column.is_valid().to_numpy(zero_copy_only=False)]
            self._arrays[name][there] = column.drop_null().to_numpy(zero_copy_only=False)
            self._known[name][there] = True

    def _grow(self, needed: int) -> None:
        self._marks = _grown(self._marks, needed, self._first_mark)
        for name, array in self._arrays.items():
            self._arrays[name] = _grown(array, needed, self._table.default_of(name))
        for name, known in self._known.items():
            self._known[name] = _grown(known, needed, False)

    def keep(self, slots: Places) -> None:
        """Give keys new slots: slot ``i`` gets the numbers of the old slot ``slots[i]``. The
        numbers of old slots that are not in *slots* are dropped."""
        if len(self._table) > len(self._marks):
            self._grow(len(self._table))
        self._marks = self._marks[slots]
        self._arrays = {name: array[slots] for name, array in self._arrays.items()}
        self._known = {name: known[slots] for name, known in self._known.items()}

    def capture(self, namespace: int, begin: int | None) -> _Captured:
        """Return a capture of the present numbers, or only of the numbers changed since the mark
        *begin* (:meth:`CaptureLog.begin`); *begin* None: of all."""
        if self._first_mark != _ABSENT and len(self._table) > len(self._marks):
            self._grow(len(self._table))
        marks = self._marks[: len(self._table)]
        slots = np.flatnonzero(marks != _ABSENT if begin is None else marks >= begin)
        return _Captured(
            namespace,
            slots,
            {name: array[slots] for name, array in self._arrays.items()},
            {name: ~known[slots] for name, known in self._known.items()},
        )


class _Captured(NamedTuple):
    namespace: int
    slots: Places
    arrays: Mapping[str, Numbers]
    missing: Mapping[str, npt.NDArray[np.bool_]]
    """By name, for columns with gaps: whether each slot has no number."""


@dataclass(frozen=True)
class NumbersCapture(ColumnarCapture):
    """The captured numbers of a :class:`ColumnarTable`, which are not written to a snapshot yet."""

    namespaced: bool
    whole: bool
    removed: int | None
    parts: Sequence[_Captured]
    slots: Places
    """Slots of all parts, in order, without duplicates."""
    keys: Sequence[Any]
    """The key of each of *slots*."""

    def write(self, assign: KeyGroupAssigner) -> ColumnarSnapshot:
        encoder = ValueEncoder()
        places = np.searchsorted(self.slots, _together([part.slots for part in self.parts]))
        batch = self._batch(places)
        groups = assign.of_all(self.keys)[places]
        written = {}
        for group, part in by_group(groups, batch):
            mine, columns, schema = (
                part.column(0).to_numpy(),
                part.columns[1:],
                part.schema.remove(0),
            )
            if self.namespaced:
                mine, place = np.unique(mine, return_inverse=True)
                columns[1:1] = [pa.array(place.astype(np.int32))]
                schema = schema.insert(1, pa.field(_KEY, pa.int32()))
            keys = [self.keys[place] for place in mine.tolist()]
            frame = ColumnarFrame(pa.RecordBatch.from_arrays(columns, schema=schema), keys)
            written[group] = frame.write(encoder)
        return ColumnarSnapshot(
            NUMBERS,
            self.namespaced,
            self.whole,
            self.removed,
            written,
            tuple(sorted(encoder.pickled)),
        )

    def _batch(self, places: Places) -> pa.RecordBatch:
        """Return a batch with a row for each captured key and namespace. Its columns: the index of
        the row's key in *keys* (*places*), the namespace (if there are any), the numbers."""
        columns = {"": pa.array(places)}
        sizes = [len(part.slots) for part in self.parts]
        if self.namespaced:
            namespaces = np.array([part.namespace for part in self.parts], np.int64)
            columns[_NAMESPACE] = pa.array(np.repeat(namespaces, sizes))
        for name in dict.fromkeys(name for part in self.parts for name in part.arrays):
            (kind,) = {part.arrays[name].dtype for part in self.parts if name in part.arrays}
            numbers, missing = [], []
            for part, size in zip(self.parts, sizes, strict=True):
                numbers.append(part.arrays.get(name, np.zeros(size, kind)))
                lacks = np.full(size, name not in part.arrays)
                missing.append(part.missing.get(name, lacks))
            mask = np.concatenate(missing)
            columns[_PREFIX + name] = pa.array(
                np.concatenate(numbers), mask=mask if mask.any() else None
            )
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


_NAMESPACE, _KEY = "namespace", "key"
"""Columns in snapshots. In a namespaced table, ``key`` has the index of the row's key in the list
of keys, as a key can occur in several namespaces."""


class ColumnarTable:
    """Keyed numbers in arrays; see the module's docstring.
    *namespaced*: whether there are numbers for each key and namespace (an integer, such as a
    window's start) instead of numbers for each key."""

    def __init__(self, namespaced: bool = False) -> None:
        self.namespaced = namespaced
        self._numbers = KeyNumbers()
        self._columns: dict[str, _Column] = {}
        self._stored: dict[str, np.dtype[Any]] = {}
        """Types of restored columns that are not in use yet."""
        self._namespaces: dict[int, NamespaceArrays] = {}
        self.log = CaptureLog()
        self._only = self._add_only()
        self._look_at = _FORGET_FROM

    def _add_only(self) -> NamespaceArrays:
        only = NamespaceArrays(self, _FIRST_CAPACITY, self.log.number)
        for name, column in self._columns.items():
            only.convert(name, column)
        if not self.namespaced:
            self._namespaces[_ONLY] = only
        return only

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def keys(self) -> list[Any]:
        """The known keys. A key's index is its slot: the index of its numbers in the arrays."""
        return self._numbers.keys

    # --- slots --------------------------------------------------------------------------------

    def slots_of_column(self, keys: pa.Array) -> Slots:
        """Return the slot (index in the arrays of numbers) of each row's key; new keys get slots.
        In a table without namespaces, the slots are marked as changed."""
        slots = self._numbers.slots_of(keys)
        self.touch(slots)
        return slots

    def known_slots_of_column(self, keys: pa.Array) -> Slots:
        """Return the slot (index in the arrays of numbers) of each row's key. Unlike
        :meth:`slots_of_column`, marks no slot as changed."""
        return self._numbers.slots_of(keys)

    def slots_of(self, keys: Iterable[Any]) -> Slots:
        """Return the slot (index in the arrays of numbers) of each key, for keys in no Arrow
        column; new keys get slots. In a table without namespaces, the slots are marked as changed.
        """
        slots = np.fromiter(map(self._numbers.slot_of, keys), np.int32)
        self.touch(slots)
        return slots

    def touch(self, slots: Slots) -> None:
        """Note that the numbers at *slots* are changed, so that the next capture of changes has
        them. For a table without namespaces."""
        if self.log.number and not self.namespaced:  # the first capture has everything
            self._only.touch(slots)

    # --- namespaces ---------------------------------------------------------------------------

    @property
    def namespaces(self) -> Mapping[int, NamespaceArrays]:
        """The numbers in this table, for each namespace that has any."""
        return self._namespaces

    def in_namespace(self, namespace: int) -> NamespaceArrays:
        """Return the numbers of a namespace (such as a window), which is created at its first use.
        A caller that changes numbers must call :meth:`NamespaceArrays.touch`."""
        arrays = self._namespaces.get(namespace)
        if arrays is None:
            arrays = NamespaceArrays(self, len(self))
            for name, column in self._columns.items():
                arrays.convert(name, column)
            self._namespaces[namespace] = arrays
        return arrays

    def remove_up_to(self, namespace: int) -> None:
        """Remove the namespace *namespace* and all lower ones. May give keys other slots (indices
        in the arrays), so slots that were looked up before are invalid."""
        gone = [each for each in self._namespaces if each <= namespace]
        for each in gone:
            del self._namespaces[each]
        if gone:
            self.log.remove(namespace)
        if len(self) >= self._look_at:
            self._forget_keys()

    def clear(self) -> None:
        """Remove all keys and numbers of a table without namespaces; the columns remain."""
        self._numbers = KeyNumbers()
        self._only = self._add_only()
        self.log.remove(_ONLY)

    def _forget_keys(self) -> None:
        """Forget the keys that have no numbers in any namespace, if they are at least half of all
        keys.
        Called when the number of keys has doubled, so it costs no more than assigning the slots."""
        present = np.zeros(len(self), np.bool_)
        for arrays in self._namespaces.values():
            here = arrays.present()
            present[: len(here)] |= here
        kept = np.flatnonzero(present)
        if 2 * len(kept) <= len(self):
            for arrays in self._namespaces.values():
                arrays.keep(kept)
            keys, self._numbers = self._numbers.keys, KeyNumbers()
            for slot in kept.tolist():
                self._numbers.slot_of(keys[slot])
        self._look_at = max(_FORGET_FROM, 2 * len(self))

    # --- columns ------------------------------------------------------------------------------

    def kind_of(self, name: str) -> np.dtype[Any] | None:
        """Return the type of a column, also of a restored column that is not in use; None if there
        is no such column."""
        column = self._columns.get(name)
        return self._stored.get(name) if column is None else column.kind

    def default_of(self, name: str) -> Any:
        """Return the number that a new key gets in the column *name*."""
        return self._columns[name].default if name in self._columns else 0

    def column(self, name: str, kind: Any, default: Any = 0) -> None:
        """Add a column with a number for each key, at first *default*, unless the same column
        exists. Raises StateError: the name is in use for another type."""
        column = _Column(np.dtype(kind), default)
        known, stored = self._columns.get(name), self._stored.get(name)
        if known is not None and known != column:
            raise StateError(
                f"array state {name!r} holds {known.kind} ({known.default} at first) here and "
                f"is asked for as {column.kind} ({default} at first): give one another name"
            )
        if stored is not None and stored != column.kind:
            raise StateError(
                f"array state {name!r} was stored as {stored} and is asked for as "
                f"{column.kind}: give it another name, or the type that it had"
            )
        if known is None:
            self._convert(name, column)

    def wide_column(
        self, name: str, kind: np.dtype[Any], default_of: Callable[[np.dtype[Any]], Any]
    ) -> np.dtype[Any]:
        """Add the column *name*, or widen its type so that it can also hold numbers of type *kind*.
        Returns the column's type: NumPy's common type of *kind* and the present (or stored) type of
        the column. *default_of*: returns the number that new keys get in a column of the given
        type."""
        known = self.kind_of(name)
        wide = kind if known is None else np.promote_types(known, kind)
        if known is None or wide != known or name not in self._columns:
            self._convert(name, _Column(wide, default_of(wide)))
        return wide

    def _convert(self, name: str, column: _Column) -> None:
        self._stored.pop(name, None)
        self._columns[name] = column
        for arrays in self._namespaces.values():
            arrays.convert(name, column)

    def values(self, name: str) -> Numbers:
        """Return the numbers of a column, by slot, in a table without namespaces. They may be read
        and written until keys are added."""
        return self._only.values(name)

    # --- snapshots ----------------------------------------------------------------------------

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> NumbersCapture:
        """Return a capture of the present numbers, or of the changes since an earlier capture.
        Later changes do not affect it. The arguments are those of
        :meth:`KeyedStateBackend.capture`."""
        begin = self.log.begin(since)
        parts = [arrays.capture(each, begin) for each, arrays in self._namespaces.items()]
        found = _together([part.slots for part in parts])
        slots = np.unique(found) if len(parts) > 1 else found
        keys = self._numbers.keys
        capture = NumbersCapture(
            self.namespaced,
            begin is None,
            self.log.removed(begin),
            parts,
            slots,
            keys.copy() if len(slots) == len(keys) else [keys[slot] for slot in slots.tolist()],
        )
        self.log.captured(checkpoint_id)
        return capture

    def restore(self, restored: RestoredColumns, assign: KeyGroupAssigner) -> None:
        """Take over stored numbers, before any column is requested. *assign* computes the key group
        that a key has now. Raises StateError: columns were requested before, the stored state is of
        another kind, or its keys are in other key groups now."""
        if self._columns:
            raise StateError("a table is restored before its columns are used, not afterwards")
        if (restored.kind, restored.namespaced) != (NUMBERS, self.namespaced):
            raise restored.unlike(NUMBERS, self.namespaced)
        frames = []
        for group, of_group in restored.frames().items():
            for frame in of_group:
                assert frame.keys is not None
                check_key_groups(f"state {restored.name!r}", frame.keys, group, assign)
            frames += of_group
        for frame in frames:
            for field in frame.batch.schema:
                if field.name.startswith(_PREFIX):
                    name, kind = field.name.removeprefix(_PREFIX), field.type.to_pandas_dtype()
                    known = self._stored.get(name)
                    self._stored[name] = np.dtype(
                        kind if known is None else np.promote_types(known, kind)
                    )
        for frame in frames:
            self._take_over(frame)

    def _take_over(self, frame: ColumnarFrame) -> None:
        assert frame.keys is not None
        slots = np.fromiter(map(self._numbers.slot_of, frame.keys), np.int32, len(frame.keys))
        numbers = {
            name.removeprefix(_PREFIX): frame.batch.column(place)
            for place, name in enumerate(frame.batch.schema.names)
            if name.startswith(_PREFIX)
        }
        if not self.namespaced:
            self._only.restore(slots, numbers, self._stored)
            return
        slots = slots[frame.batch.column(1).to_numpy()]
        namespaces = frame.namespaces
        for namespace in np.unique(namespaces).tolist():
            mine = np.flatnonzero(namespaces == namespace)
            parts = {name: column.take(pa.array(mine)) for name, column in numbers.items()}
            self.in_namespace(namespace).restore(slots[mine], parts, self._stored)


def _together(slots: Sequence[Places]) -> Places:
    return np.concatenate(slots) if slots else np.empty(0, np.intp)


def _grown(array: Numbers, needed: int, default: Any) -> Numbers:
    grown: Numbers = np.full(max(needed, 2 * len(array)), default, array.dtype)
    grown[: len(array)] = array
    return grown


class ColumnarArrayState(ArrayState):
    """An :class:`ArrayState` whose numbers are in a :class:`ColumnarTable`."""

    def __init__(self, table: ColumnarTable, name: str) -> None:
        self._table = table
        self._name = name

    @property
    def values(self) -> Numbers:
        return self._table.values(self._name)
