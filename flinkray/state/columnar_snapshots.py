"""Snapshots of columnar tables, and the log of captures and of removals between them.

The data of a table for one key group is a sequence of frames, each with a record batch. A restore
reads them in order. Batches may have different columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.errors import StateError, StateMigrationError
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.snapshots import ColumnarSnapshot
from flinkray.state.value_encoding import (
    UnreadableValuesError,
    ValueDecoder,
    ValueEncoder,
    pack,
    unpack,
)

Groups = npt.NDArray[np.int32]


class ColumnarCapture(ABC):
    """The contents of a columnar table at one moment, which are not written to a snapshot yet."""

    @abstractmethod
    def write(self, assign: KeyGroupAssigner) -> ColumnarSnapshot:
        """Return the capture as a snapshot; may be called from any thread. *assign* computes key
        groups."""


class ColumnarFrame(NamedTuple):
    """A part of the stored data of one key group: a record batch, and the keys of its rows if they
    are not a column of the batch."""

    batch: pa.RecordBatch
    """The rows; in a namespaced table, the first column has the namespaces."""
    keys: Sequence[Any] | None
    """Keys of the rows, if the table keeps them outside of the batch; else None."""

    @property
    def namespaces(self) -> npt.NDArray[np.int64]:
        """The namespace of each row, from the first column; only for namespaced tables."""
        found: npt.NDArray[np.int64] = self.batch.column(0).to_numpy()
        return found

    def write(self, encoder: ValueEncoder) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        keys = None if self.keys is None else encoder.encode(self.keys)
        return pack([keys, sink.getvalue().to_pybytes()])


def read_frames(name: str, data: bytes) -> Iterator[ColumnarFrame]:
    """Yield the frames that are stored in *data*, the data of a key group. *name*: the state, for
    errors. Raises StateMigrationError if the keys are of classes that have changed."""
    try:
        for keys, stream in unpack(data):
            batch = pa.ipc.open_stream(stream).read_next_batch()
            decoded = None if keys is None else ValueDecoder(exactly=True).decode(keys)
            yield ColumnarFrame(batch, decoded)
    except (StateMigrationError, UnreadableValuesError) as error:
        raise StateMigrationError(f"keys of state {name!r}: {error}") from error


def by_group(groups: Groups, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield, for each key group, the key group and its rows in *batch*; rows keep their order.
    *groups*: the key group of each row of *batch*."""
    if not batch.num_rows:
        return
    order = np.argsort(groups, kind="stable")
    ordered, batch = groups[order], batch.take(pa.array(order))
    begins = np.flatnonzero(np.diff(ordered, prepend=-1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        part = batch.slice(begin, end - begin)
        if any(pa.types.is_dictionary(kind) for kind in batch.schema.types):
            columns = [_with_own_entries(column) for column in part.columns]
            part = pa.RecordBatch.from_arrays(columns, schema=part.schema)
        yield int(ordered[begin]), part


def _with_own_entries(column: pa.Array) -> pa.Array:
    kind = column.type
    if not pa.types.is_dictionary(kind):
        return column
    import pyarrow.compute as pc

    used = pc.unique(column.indices.drop_null()).sort()
    indices = pc.index_in(column.indices, used).cast(kind.index_type)
    entries = column.dictionary.take(used)
    return pa.DictionaryArray.from_arrays(indices, entries, ordered=kind.ordered)


def as_few(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *batches*, in the same order, in fewer batches.
    Adjacent batches with the same columns are combined."""
    for _, same in groupby(batches, lambda batch: batch.schema):
        run = list(same)
        if len(run) == 1:
            yield run[0]
        else:
            yield from pa.Table.from_batches(run).combine_chunks().to_batches()


class _Part(NamedTuple):
    removed: int | None
    """Everything up to this namespace in earlier parts is removed."""
    payload: bytes


class RestoredColumns:
    """The restored, serialised data of a columnar table that the program has not requested yet."""

    def __init__(self, name: str, kind: str, namespaced: bool) -> None:
        self.kind = kind
        self.namespaced = namespaced
        self.name = name
        self._groups: dict[int, list[_Part]] = {}
        """Parts by key group, oldest first."""
        self._pickled: set[str] = set()

    def add(self, snapshot: ColumnarSnapshot, theirs: KeyGroupRange, own: KeyGroupRange) -> None:
        """Add a snapshot of the key groups *theirs*; data outside of the key groups *own* is
        dropped. A whole snapshot replaces what was added before for its key groups; changes are
        appended. Raises StateError if the snapshot is of another kind."""
        if (snapshot.kind, snapshot.namespaced) != (self.kind, self.namespaced):
            raise self.unlike(snapshot.kind, snapshot.namespaced)
        self._pickled.update(snapshot.pickled)
        for group in [group for group in self._groups if group in theirs]:
            if snapshot.whole:
                del self._groups[group]
            elif snapshot.removed is not None:
                self._groups[group].append(_Part(snapshot.removed, b""))
        for group, payload in snapshot.groups.items():
            if group in own:
                self._groups.setdefault(group, []).append(_Part(None, payload))

    def unlike(self, kind: str, namespaced: bool) -> StateError:
        """Return the error which says that this state is requested as *kind*, but stored as another
        kind. *namespaced*: whether numbers or rows for each window are requested."""
        was, now = (
            f"{'per-window ' if windows else ''}{of}"
            for of, windows in ((self.kind, self.namespaced), (kind, namespaced))
        )
        return StateError(f"state {self.name!r} was stored as {was} and is asked for as {now}")

    def frames(self) -> dict[int, list[ColumnarFrame]]:
        """Return the frames of each key group, oldest first. Rows of namespaces that a later
        snapshot has removed are left out."""
        return {group: self._frames_of(parts) for group, parts in self._groups.items()}

    def _frames_of(self, parts: list[_Part]) -> list[ColumnarFrame]:
        frames: list[ColumnarFrame] = []
        removed: int | None = None
        for part in reversed(parts):
            if part.removed is not None:
                removed = part.removed if removed is None else max(removed, part.removed)
            for frame in reversed(list(read_frames(self.name, part.payload))):
                kept = self._without(removed, frame)
                if kept.batch.num_rows:
                    frames.append(kept)
        return frames[::-1]

    def _without(self, removed: int | None, frame: ColumnarFrame) -> ColumnarFrame:
        if removed is None:
            return frame
        if not self.namespaced:
            return frame._replace(batch=frame.batch.slice(0, 0))
        left = pa.array(frame.namespaces > removed)
        return frame._replace(batch=frame.batch.filter(left))

    def snapshot(self) -> ColumnarSnapshot:
        encoder = ValueEncoder()
        groups = {
            group: b"".join(frame.write(encoder) for frame in frames)
            for group, frames in self.frames().items()
        }
        return ColumnarSnapshot(
            self.kind, self.namespaced, True, None, groups, tuple(sorted(self._pickled))
        )


_MOST_KNOWN = 1000
"""Largest number of captures to which later captures can refer."""


class CaptureLog:
    """Counts the captures of a columnar table, so that a capture can contain only changes. Each
    change in the table is marked with *number*, the number of captures made before the change. So
    the changes since a capture are those with the mark that :meth:`begin` returns, or a higher
    one."""

    def __init__(self) -> None:
        self.number = 0
        """Number of captures so far."""
        self._known: dict[int, int] = {}
        """Number of captures up to and including the capture, by its checkpoint id.
        Later captures can refer to these captures."""
        self._removals: list[tuple[int, int]] = []
        """(current number, namespace up to which everything was removed)."""

    @property
    def oldest(self) -> int:
        """The lowest mark that :meth:`begin` can still return. The table need not tell lower marks
        apart."""
        return min(self._known.values(), default=self.number)

    def begin(self, since: int | None) -> int | None:
        """Return the lowest mark of the changes made after the capture with checkpoint id *since*.
        None if *since* is None, or no capture with this id is known (any more): then a capture
        needs the whole state. Captures before *since* are forgotten."""
        begin = None if since is None else self._known.get(since)
        if begin is not None:
            self._known = {known: at for known, at in self._known.items() if at >= begin}
        return begin

    def removed(self, begin: int | None) -> int | None:
        """Return the highest namespace that was given to :meth:`remove` since the mark *begin* was
        reached. None if nothing was removed since then, or *begin* is None."""
        if begin is None:
            return None
        return max((namespace for at, namespace in self._removals if at >= begin), default=None)

    def remove(self, namespace: int) -> None:
        """Note that *namespace* and all lower namespaces are removed from the table now."""
        if self._removals and self._removals[-1][0] == self.number:
            namespace = max(namespace, self._removals.pop()[1])
        self._removals.append((self.number, namespace))

    def captured(self, checkpoint_id: int | None) -> None:
        """Note that a capture was made now.
        *checkpoint_id*: id by which later captures can refer to this one; None: they cannot."""
        self.number += 1
        if checkpoint_id is not None:
            self._known[checkpoint_id] = self.number
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        oldest = self.oldest
        self._removals = [removal for removal in self._removals if removal[0] >= oldest]
