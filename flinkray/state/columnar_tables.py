"""The columnar tables of a backend: in memory, with whatever backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.columnar_snapshots import ColumnarCapture, RestoredColumns
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.keys import KeyGroupAssigner
from flinkray.state.row_table import KeysOf, RowTable
from flinkray.state.snapshots import ColumnarSnapshot

ColumnarT = TypeVar("ColumnarT", ColumnarTable, RowTable)


class ColumnarTables:
    """By name, those that were restored and not asked for yet included."""

    def __init__(self) -> None:
        self._tables: dict[str, ColumnarTable | RowTable] = {}
        self.restored: dict[str, RestoredColumns] = {}

    def __bool__(self) -> bool:
        """Whether any was asked for."""
        return bool(self._tables)

    def columns(
        self, name: str, namespaced: bool, assign: KeyGroupAssigner, known: Iterable[int]
    ) -> ColumnarTable:
        """*known*: captures that others may begin at.

        Raises:
            StateError: the state is of another kind, or was stored for keys of other key groups.
        """
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
        """The same of rows."""
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
            table.restore(restored, assign)
            del self.restored[name]
        for checkpoint_id in known:  # what was restored was in those captures
            table.log.captured(checkpoint_id)
        self._tables[name] = table
        return table

    def restore(
        self, columns: Mapping[str, ColumnarSnapshot], theirs: KeyGroupRange, own: KeyGroupRange
    ) -> None:
        """Take over what is in *own* of the state of *theirs*, after what was added before."""
        for name, snapshot in columns.items():
            known = self.restored.setdefault(
                name, RestoredColumns(name, snapshot.kind, snapshot.namespaced)
            )
            known.add(snapshot, theirs, own)

    def capture(self, checkpoint_id: int | None, since: int | None) -> dict[str, ColumnarCapture]:
        """See :meth:`KeyedStateBackend.capture`."""
        return {name: table.capture(checkpoint_id, since) for name, table in self._tables.items()}
