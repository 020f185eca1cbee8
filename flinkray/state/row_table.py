"""Keyed state in rows (record batches as they arrived), and all columnar tables of a backend.

Rows can only be added, and removed with their namespace (window) or all at once. The keys of rows
are only determined when a snapshot is written. Batches may have different columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.columnar_snapshots import (
    CaptureLog,
    ColumnarCapture,
    ColumnarFrame,
    Groups,
    RestoredColumns,
    as_few,
    by_group,
)
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.errors import StateError
from flinkray.state.key_encoding import UnsupportedKeyError
from flinkray.state.key_group_assignment import KeyGroupAssigner, key_groups_of_array
from flinkray.state.snapshots import ColumnarSnapshot
from flinkray.state.state_serializer import check_key_groups, of_another_key_type
from flinkray.state.thread_turns import first_turn
from flinkray.state.value_encoding import ValueEncoder

ROWS = "rows"
"""The kind that snapshots give for a :class:`RowTable`."""

Namespaces = npt.NDArray[np.int64]
KeysOf = Callable[[pa.RecordBatch], pa.Array]
"""Function that returns the column of keys of a batch; called from any thread."""


class Rows(NamedTuple):
    """Rows of a :class:`RowTable`: a batch, and each row's namespace (None: there are none)."""

    batch: pa.RecordBatch
    namespaces: Namespaces | None

    def take(self, places: npt.NDArray[np.intp]) -> Rows:
        assert self.namespaces is not None
        return Rows(self.batch.take(pa.array(places)), self.namespaces[places])


@dataclass(frozen=True)
class _Part:
    rows: Rows
    groups: Groups | None
    """Key groups of the rows; None if the keys are a column of the batch."""
    number: int
    """Number of captures before the rows were added."""

    def take(self, places: npt.NDArray[np.intp]) -> _Part:
        groups = None if self.groups is None else self.groups[places]
        return replace(self, rows=self.rows.take(places), groups=groups)


@dataclass(frozen=True)
class RowsCapture(ColumnarCapture):
    """A capture of a :class:`RowTable` that is not written yet."""

    namespaced: bool
    whole: bool
    removed: int | None
    parts: Sequence[_Part]
    keys_of: KeysOf | None

    def write(self, assign: KeyGroupAssigner) -> ColumnarSnapshot:
        encoder = ValueEncoder()
        written: dict[int, list[bytes]] = {}
        for _, same in groupby(self.parts, lambda part: part.rows.batch.schema):
            run = list(same)
            groups = np.concatenate([self._groups_of(part, assign) for part in run])
            at = 0
            for batch in as_few(map(self._with_namespaces, run)):
                mine, at = groups[at : at + batch.num_rows], at + batch.num_rows
                for group, of_group in by_group(mine, batch):
                    frame = ColumnarFrame(of_group, None)
                    written.setdefault(group, []).append(frame.write(encoder))
        payloads = {group: b"".join(frames) for group, frames in written.items()}
        return ColumnarSnapshot(ROWS, self.namespaced, self.whole, self.removed, payloads)

    def _groups_of(self, part: _Part, assign: KeyGroupAssigner) -> Groups:
        if part.groups is not None:
            return part.groups
        assert self.keys_of is not None
        keys = self.keys_of(part.rows.batch)
        return key_groups_of_array(keys, assign.max_parallelism, assign.hash_of)

    def _with_namespaces(self, part: _Part) -> pa.RecordBatch:
        batch, namespaces = part.rows
        if namespaces is None:
            return batch
        schema = batch.schema.insert(0, pa.field("namespace", pa.int64()))
        return pa.RecordBatch.from_arrays([pa.array(namespaces), *batch.columns], schema=schema)


class RowTable:
    """Keyed state in rows; see the module's docstring. *namespaced*: rows belong to namespaces,
    which are integers. *keys_of*: returns the column of keys of a batch; None: keys are given with
    the rows. *assign*: computes key groups of keys that are given with the rows."""

    def __init__(
        self,
        namespaced: bool = False,
        keys_of: KeysOf | None = None,
        assign: KeyGroupAssigner | None = None,
    ) -> None:
        self.namespaced = namespaced
        self._assign = assign
        self.keys_of = keys_of
        self._parts: list[_Part] = []
        self._one: pa.RecordBatch | None = None
        """All rows in one batch, if nothing has changed since it was made."""
        self.log = CaptureLog()

    def __iter__(self) -> Iterator[Rows]:
        return (part.rows for part in self._parts)

    def append(
        self,
        batch: pa.RecordBatch,
        namespaces: Namespaces | None = None,
        keys: Sequence[Any] | None = None,
    ) -> None:
        """Add rows. *namespaces*: the namespace of each row, in a namespaced table; *keys*: the key
        of each row, if the keys are not a column."""
        groups = None
        if keys is not None:
            assert self._assign is not None
            groups = self._assign.of_all(keys)
        self._parts.append(_Part(Rows(batch, namespaces), groups, self.log.number))
        self._one = None

    def as_one(self) -> pa.RecordBatch:
        """Return all rows as one batch.
        The table must have rows and no namespaces, and all batches the same columns."""
        if self._one is None:
            (self._one,) = as_few(part.rows.batch for part in self._parts)
            parts, begin, oldest = [], 0, self.log.oldest
            # Parts that are in all captures to which later ones can refer need not be kept apart.
            for number, same in groupby(
                self._parts, lambda part: part.number if part.number >= oldest else 0
            ):
                size = sum(part.rows.batch.num_rows for part in same)
                rows = Rows(self._one.slice(begin, size), None)  # shares the batch's memory
                parts.append(_Part(rows, None, number))
                begin += size
            self._parts = parts
        return self._one

    def convert(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Replace each stored batch by the result of *change*, which may convert types of
        columns."""
        self._one = None
        self._parts = [
            replace(part, rows=part.rows._replace(batch=change(part.rows.batch)))
            for part in self._parts
        ]

    def take_up_to(self, namespace: int) -> list[Rows]:
        """Remove and return the rows of the namespace *namespace* and of all lower ones."""
        taken: list[Rows] = []
        kept: list[_Part] = []
        for part in self._parts:
            namespaces = part.rows.namespaces
            assert namespaces is not None
            if int(namespaces.min()) > namespace:
                kept.append(part)
                continue
            if int(namespaces.max()) <= namespace:
                taken.append(part.rows)
            else:
                is_due = namespaces <= namespace
                taken.append(part.rows.take(np.flatnonzero(is_due)))
                kept.append(part.take(np.flatnonzero(~is_due)))
        self._parts = kept
        if taken:
            self.log.remove(namespace)
        return taken

    def clear(self) -> None:
        assert not self.namespaced
        self._parts, self._one = [], None
        self.log.remove(0)

    # --- snapshots ----------------------------------------------------------------------------

    def capture(self, checkpoint_id: int | None = None, since: int | None = None) -> RowsCapture:
        """Return a capture of the present rows, or of the rows added since an earlier capture.
        The arguments are those of :meth:`KeyedStateBackend.capture`."""
        begin = self.log.begin(since)
        parts = [part for part in self._parts if begin is None or part.number >= begin]
        removed = self.log.removed(begin)
        self.log.captured(checkpoint_id)
        return RowsCapture(self.namespaced, begin is None, removed, parts, self.keys_of)

    def restore(self, restored: RestoredColumns, assign: KeyGroupAssigner) -> None:
        """Take over stored rows. *assign* computes the key group that a key has now. Raises
        StateError: the stored state is of another kind, the table has rows already, or keys in a
        column are in other key groups now."""
        if self._parts:
            raise StateError("a table is restored before it has rows, not afterwards")
        if (restored.kind, restored.namespaced) != (ROWS, self.namespaced):
            raise restored.unlike(ROWS, self.namespaced)
        if self.keys_of is not None:
            frames = []
            for group, of_group in restored.frames().items():
                for batch in as_few(frame.batch for frame in of_group):
                    self._check(f"state {restored.name!r}", batch, group, assign)
                frames += of_group
            self._take_over(frames, None)
            return
        for group, frames in restored.frames().items():
            self._take_over(frames, group)

    def _check(self, of: str, batch: pa.RecordBatch, group: int, assign: KeyGroupAssigner) -> None:
        """Check that the keys of a stored batch are still in the key group *group*. *of*: name of
        the state, for the error. Raises StateMigrationError if a key is in another group, or does
        not fit the declared type."""
        assert self.keys_of is not None
        try:
            keys = self.keys_of(batch).unique()
        except UnsupportedKeyError as error:
            raise of_another_key_type(of, error) from error
        check_key_groups(of, keys, group, assign)

    def _take_over(self, frames: Iterable[ColumnarFrame], group: int | None) -> None:
        for batch in as_few(frame.batch for frame in frames):
            namespaces = None
            if self.namespaced:
                namespaces = batch.column(0).to_numpy()
                batch = pa.RecordBatch.from_arrays(batch.columns[1:], schema=batch.schema.remove(0))
            groups = None if group is None else np.full(batch.num_rows, group, np.int32)
            self._parts.append(_Part(Rows(batch, namespaces), groups, self.log.number))


ColumnarT = TypeVar("ColumnarT", ColumnarTable, RowTable)


class ColumnarTables:
    """Keeps the tables of numbers and of rows of a backend by name, and the restored tables that
    the program has not requested yet."""

    def __init__(self) -> None:
        self._tables: dict[str, ColumnarTable | RowTable] = {}
        self.restored: dict[str, RestoredColumns] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def columns(
        self, name: str, namespaced: bool, assign: KeyGroupAssigner, known: Iterable[int]
    ) -> ColumnarTable:
        """Return the table of numbers with that name; it is created at its first use.
        *known*: ids of captures to which later captures can refer. Raises StateError if the state
        is of another kind, or was stored for keys of other key groups."""
        table = self._tables.get(name)
        if table is None:
            table = self._with_restored(name, ColumnarTable(namespaced), assign, known)
        assert isinstance(table, ColumnarTable)
        return table

    def rows(
        self,
        name: str,
        namespaced: bool,
        keys_of: KeysOf | None,
        assign: KeyGroupAssigner,
        known: Iterable[int],
    ) -> RowTable:
        """Return the table of rows with that name; it is created at its first use.
        The arguments and errors are those of :meth:`columns` and :class:`RowTable`."""
        table = self._tables.get(name)
        if table is None:
            table = RowTable(namespaced, keys_of, assign)
            table = self._with_restored(name, table, assign, known)
        assert isinstance(table, RowTable)
        return table

    def _with_restored(
        self, name: str, table: ColumnarT, assign: KeyGroupAssigner, known: Iterable[int]
    ) -> ColumnarT:
        restored = self.restored.get(name)
        if restored is not None:
            with first_turn():
                table.restore(restored, assign)
            del self.restored[name]
        for checkpoint_id in known:  # these captures contain the restored data
            table.log.captured(checkpoint_id)
        self._tables[name] = table
        return table

    def restore(
        self, columns: Mapping[str, ColumnarSnapshot], theirs: KeyGroupRange, own: KeyGroupRange
    ) -> None:
        """Add snapshots of the key groups *theirs*, by table; data outside of the key groups *own*
        is dropped. A whole snapshot replaces what was added before for its key groups; changes are
        appended."""
        for name, snapshot in columns.items():
            known = self.restored.setdefault(
                name, RestoredColumns(name, snapshot.kind, snapshot.namespaced)
            )
            known.add(snapshot, theirs, own)

    def capture(self, checkpoint_id: int | None, since: int | None) -> dict[str, ColumnarCapture]:
        """Return captures of all tables; the arguments are those of
        :meth:`KeyedStateBackend.capture`."""
        return {name: table.capture(checkpoint_id, since) for name, table in self._tables.items()}
