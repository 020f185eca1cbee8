"""Keyed state in arrays: a number for each key and name, at the key's place, its *slot*.

Slots are given in the order in which keys first come.  What is kept of a point in time is an Arrow
batch for each key group: the keys in their canonical encoding, and a column for each name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.errors import StateError
from flinkray.state.interfaces import ArrayState
from flinkray.state.key_encoding import decode_key, encode_key
from flinkray.state.key_numbers import KeyNumbers, Slots
from flinkray.state.keys import KeyGroupAssigner

KEY_COLUMN = "key"

_PREFIX = "state."
"""Of the other columns."""

_FIRST_CAPACITY = 1024
_MOST_KNOWN = 1000
"""Captures that others may begin at."""


@dataclass(frozen=True)
class _Column:
    kind: np.dtype[Any]
    default: Any


@dataclass(frozen=True)
class ColumnarCapture:
    """A point in time that is not written yet."""

    keys: Sequence[Any]
    arrays: Mapping[str, npt.NDArray[Any]]
    missing: Mapping[str, npt.NDArray[np.bool_]]
    """Of some names: which of the keys have no number."""

    def write(self, group_of: KeyGroupAssigner) -> Mapping[int, pa.RecordBatch]:
        """Key group -> its keys and their numbers; from any thread."""
        groups = np.fromiter(map(group_of, self.keys), np.int32, len(self.keys))
        order = np.argsort(groups, kind="stable")
        bounds = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1))
        keys = pa.array([encode_key(self.keys[place]) for place in order.tolist()], pa.binary())
        numbers = [
            pa.array(array[order], mask=self.missing[name][order] if name in self.missing else None)
            for name, array in self.arrays.items()
        ]
        names = [KEY_COLUMN, *(_PREFIX + name for name in self.arrays)]
        everything = pa.record_batch([keys, *numbers], names)
        return {
            int(groups[order[begin]]): everything.slice(begin, end - begin)
            for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        }


class ColumnarTable:
    """See the module."""

    def __init__(self) -> None:
        self._numbers = KeyNumbers()
        self._columns: dict[str, _Column] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._restored: dict[str, npt.NDArray[np.bool_]] = {}
        """Of columns that nobody has asked for yet: which slots have a number."""
        self._changed = np.zeros(_FIRST_CAPACITY, np.int64)
        """By slot: how many captures there had been when it was changed last."""
        self._captures = 0
        self._known: dict[int, int] = {}
        """Of captures that others may begin at: how many there were with it."""

    def __len__(self) -> int:
        """Keys."""
        return len(self._numbers)

    @property
    def keys(self) -> list[Any]:
        """By slot."""
        return self._numbers.keys

    # --- slots --------------------------------------------------------------------------------

    def slots_of_column(self, keys: pa.Array) -> Slots:
        """The slot of every row, new keys included; what is there counts as changed."""
        slots = self._numbers.slots_of(keys)
        self._touch(slots)
        return slots

    def slots_of(self, keys: Iterable[Any]) -> Slots:
        """The same for keys that are no column."""
        slots = np.fromiter(map(self._numbers.slot_of, keys), np.int32)
        self._touch(slots)
        return slots

    def _touch(self, slots: Slots) -> None:
        size = len(self._numbers)
        if size > len(self._changed):
            self._changed = _grown(self._changed, size, 0)
            for name, array in self._arrays.items():
                default = self._columns[name].default if name in self._columns else 0
                self._arrays[name] = _grown(array, size, default)
            for name, known in self._restored.items():
                self._restored[name] = _grown(known, size, False)
        self._changed[slots] = self._captures

    # --- columns ------------------------------------------------------------------------------

    def column(self, name: str, kind: Any, default: Any = 0) -> None:
        """Let each key have a number of that name.

        Raises:
            StateError: the name is in use for another type.
        """
        column = _Column(np.dtype(kind), default)
        known = self._columns.get(name)
        if known is not None:
            if known != column:
                raise StateError(
                    f"array state {name!r} holds {known.kind} ({known.default} at first) here and "
                    f"is asked for as {column.kind} ({default} at first): give one another name"
                )
            return
        if name in self._restored:
            array = self._arrays[name]
            if array.dtype != column.kind:
                raise StateError(
                    f"array state {name!r} was stored as {array.dtype} and is asked for as "
                    f"{column.kind}: give it another name, or the type that it had"
                )
            array[~self._restored.pop(name)] = default
        else:
            self._arrays[name] = np.full(len(self._changed), default, column.kind)
        self._columns[name] = column

    def values(self, name: str) -> npt.NDArray[Any]:
        """By slot, of all keys that there are; a view, to be read and written until more keys
        come."""
        return self._arrays[name][: len(self._numbers)]

    # --- snapshots ----------------------------------------------------------------------------

    def capture(
        self, checkpoint_id: int | None = None, since: int | None = None
    ) -> ColumnarCapture:
        """This point in time, or what keys have that have come since an earlier one; what changes
        afterwards is not in it.  See :meth:`KeyedStateBackend.capture`."""
        size = len(self._numbers)
        begin = None if since is None else self._known.get(since)
        if begin is None:
            slots = np.arange(size)
        else:
            slots = np.flatnonzero(self._changed[:size] >= begin)
            self._known = {known: at for known, at in self._known.items() if at >= begin}
        self.captured(checkpoint_id)
        keys = self._numbers.keys
        return ColumnarCapture(
            keys.copy() if begin is None else [keys[slot] for slot in slots.tolist()],
            {name: array[slots] for name, array in self._arrays.items()},
            {name: ~known[slots] for name, known in self._restored.items()},
        )

    def captured(self, checkpoint_id: int | None) -> None:
        """A capture may begin at this moment: nothing has changed since."""
        self._captures += 1
        if checkpoint_id is not None:
            self._known[checkpoint_id] = self._captures
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def restore(self, parts: Iterable[Mapping[int, pa.RecordBatch]], own: KeyGroupRange) -> None:
        """Take over those key groups that are this subtask's *own*, before any column is asked
        for; of a key that is in several, the last one counts."""
        if self._columns:
            raise StateError("a table is restored before its columns are used, not afterwards")
        for part in parts:
            for group, batch in part.items():
                if group in own:
                    self._take_over(batch)

    def _take_over(self, batch: pa.RecordBatch) -> None:
        slots = self.slots_of(map(decode_key, batch.column(KEY_COLUMN).to_pylist()))
        for field in batch.schema:
            if field.name == KEY_COLUMN:
                continue
            name, column = field.name.removeprefix(_PREFIX), batch.column(field.name)
            kind = np.dtype(field.type.to_pandas_dtype())
            if name not in self._arrays:
                self._arrays[name] = np.zeros(len(self._changed), kind)
                self._restored[name] = np.zeros(len(self._changed), np.bool_)
            there = column.is_valid().to_numpy(zero_copy_only=False)
            values = column.drop_null().to_numpy(zero_copy_only=False)
            self._arrays[name][slots[there]] = values
            self._restored[name][slots[there]] = True


def _grown(array: npt.NDArray[Any], needed: int, default: Any) -> npt.NDArray[Any]:
    grown: npt.NDArray[Any] = np.full(max(needed, 2 * len(array)), default, array.dtype)
    grown[: len(array)] = array
    return grown


class ColumnarArrayState(ArrayState):
    """See :class:`ArrayState`."""

    def __init__(self, table: ColumnarTable, name: str) -> None:
        self._table = table
        self._name = name

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._table.values(self._name)
