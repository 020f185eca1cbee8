"""The columnar tables of a backend, which are in memory with every backend."""

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
    """Keeps the columnar tables of a backend by name, and restored tables not in use yet."""

    def __init__(self) -> None:
        self._tables: dict[str, ColumnarTable | RowTable] = {}
        self.restored: dict[str, RestoredColumns] = {}

    def __bool__(self) -> bool:
        """Return whether at least one table is in use."""
        return bool(self._tables)

    def columns(
        self, name: str, namespaced: bool, assign: KeyGroupAssigner, known: Iterable[int]
    ) -> ColumnarTable:
        """Return the table of numbers with that name; it is created at its first use.

        *known*: ids of captures to which later captures can refer. Raises StateError if the state
        is of another kind, or was stored for keys of other key groups.
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
            table.restore(restored, assign)
            del self.restored[name]
        for checkpoint_id in known:  # these captures contain the restored data
            table.log.captured(checkpoint_id)
        self._tables[name] = table
        return table

    def restore(
        self, columns: Mapping[str, ColumnarSnapshot], theirs: KeyGroupRange, own: KeyGroupRange
    ) -> None:
        """Add snapshots of the key groups *theirs*, restricted to the key groups *own*.
        Their frames follow those of the snapshots added before."""
        for name, snapshot in columns.items():
            known = self.restored.setdefault(
                name, RestoredColumns(name, snapshot.kind, snapshot.namespaced)
            )
            known.add(snapshot, theirs, own)

    def capture(self, checkpoint_id: int | None, since: int | None) -> dict[str, ColumnarCapture]:
        """Capture all tables; the arguments are those of :meth:`KeyedStateBackend.capture`."""
        return {name: table.capture(checkpoint_id, since) for name, table in self._tables.items()}
