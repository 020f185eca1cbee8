"""Rows of a stream that are handed over checkpoint by checkpoint, as Parquet files.

An *epoch* is the output of a stream between two checkpoints. Writers put its rows into directories
of their own, which readers do not see. When the checkpoint is complete, a committer publishes the
list of directories that form the epoch. The reader takes epochs in their order and notes each
finished epoch. Until then it gets the epoch again, always with the same rows and the same id.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.fs

from flinkray.file_results.result_files import ResultDirectory

_VERSION = 1
_DONE = re.compile(r"_done-(\d+)\.json")
_EPOCH = re.compile(r"(\d+)\.json")
_ROWS = "rows"


class EpochPart(NamedTuple):
    """The rows that one writer adds to an epoch: a directory of finished files."""

    name: str
    rows: int
    columns: str
    """Names and types of the columns, for people; equal texts for equal columns."""
    location: str = ""
    """Location of the :class:`Epochs` for which the part was written."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The published output of a stream between two checkpoints: the parts of all its writers."""

    checkpoint_id: int
    parts: tuple[EpochPart, ...]

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class EpochsDone:
    """The reader's progress: the last finished epoch, and the rows of all finished epochs."""

    checkpoint_id: int = -1
    """Id of the last finished epoch; -1 if there is none."""
    rows: int = 0
    """Number of rows in all finished epochs."""


class Epochs:
    """The epochs that one stream hands to one reader, at a path of this machine or a URI. All
    methods block, and raise OSError while the storage fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self.location = self._directory.location

    # --- methods of the writer --------------------------------------------------------------------

    def new_part(self) -> tuple[str, ResultDirectory]:
        """Return (name, directory) for a new part, which a writer fills."""
        name = uuid.uuid4().hex
        return name, self.part(name)

    def sync(self, name: str) -> None:
        """Make a finished part durable, so that a checkpoint may refer to it."""
        self.part(name).sync()

    def publish(self, checkpoint_id: int, parts: Sequence[EpochPart]) -> None:
        """Publish the epoch of a completed checkpoint.
        Call in the order of the ids. May be called again with the same parts."""
        content = {"version": _VERSION, "parts": [tuple(part) for part in parts]}
        self._directory.write_json(f"{checkpoint_id:020d}.json", content)

    def end(self, execution: str) -> None:
        """Store that no epoch follows in *execution*, the id of the stream's present execution. If
        the stream goes back to an earlier checkpoint, another execution begins and epochs may
        follow."""
        # Each execution has a file of its own, so an execution that was replaced without knowing it
        # does not end the current one.
        self._directory.write_json(_ended(execution), {"version": _VERSION})

    # --- methods of the reader --------------------------------------------------------------------

    def is_ended(self, execution: str) -> bool:
        """Return whether no epoch follows in this execution of the stream.

        Call this before :meth:`published`; otherwise an epoch that is published between the calls
        is missed.
        """
        return self._directory.read_json(_ended(execution)) is not None

    def waiting(self) -> int:
        """Return how many published epochs the reader has not finished yet."""
        names = self._names()
        done = max(_numbers(_DONE, names), default=-1)
        return sum(number > done for number in _numbers(_EPOCH, names))

    def published(self, after: int) -> list[Epoch]:
        """Return the published epochs whose ids are above *after*, in order."""
        ids = sorted(_numbers(_EPOCH, self._names()))
        return [epoch for i in ids if i > after and (epoch := self._epoch(i)) is not None]

    def _epoch(self, checkpoint_id: int) -> Epoch | None:
        content = self._directory.read_json(f"{checkpoint_id:020d}.json")
        if content is None:  # another process has finished and deleted the epoch meanwhile
            return None
        return Epoch(checkpoint_id, tuple(EpochPart(*part) for part in content["parts"]))

    def part(self, name: str) -> ResultDirectory:
        """Return the directory of the part *name*."""
        return ResultDirectory(f"{self.location}/{_ROWS}/{name}")

    def note_done(self, epoch: Epoch, before: EpochsDone) -> EpochsDone:
        """Store that the reader has finished *epoch*, and return the reader's new progress.
        *before*: the reader's progress before *epoch*."""
        done = EpochsDone(epoch.checkpoint_id, before.rows + epoch.rows)
        # Each note has a file of its own, so a reader that was replaced without knowing it cannot
        # set back the notes of its successor.
        self._directory.write_json(
            _done(done.checkpoint_id), {"version": _VERSION, "rows": done.rows}
        )
        return done

    def last_done(self) -> EpochsDone:
        """Return the reader's progress as last stored by :meth:`note_done`."""
        last = max(_numbers(_DONE, self._names()), default=-1)
        if last < 0:
            return EpochsDone()
        content = self._directory.read_json(_done(last))
        return self.last_done() if content is None else EpochsDone(last, content["rows"])

    def forget(self, done: EpochsDone) -> None:
        """Delete the reader's notes of finished epochs that are older than *done*; the rows
        stay."""
        for number in _numbers(_DONE, self._names()):
            if number < done.checkpoint_id:
                self._delete(_done(number))

    # --- methods of the writer, for cleaning up ---------------------------------------------------

    def delete(self, last: int) -> None:
        """Delete the epochs with ids up to *last*, and their rows.

        The writer of the epochs calls this, because the writer knows which epochs a savepoint
        needs.
        """
        for epoch in self.published(after=-1):
            if epoch.checkpoint_id <= last:
                for part in epoch.parts:
                    self.part(part.name).delete()
                self._delete(f"{epoch.checkpoint_id:020d}.json")

    # --- files ------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        selector = pyarrow.fs.FileSelector(self._directory.path, allow_not_found=True)
        return [str(info.base_name) for info in self._directory.files.get_file_info(selector)]

    def _delete(self, name: str) -> None:
        try:
            self._directory.files.delete_file(f"{self._directory.path}/{name}")
        except FileNotFoundError:
            return


def _numbers(kind: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := kind.fullmatch(name))]


def _done(checkpoint_id: int) -> str:
    return f"_done-{checkpoint_id:020d}.json"


def _ended(execution: str) -> str:
    return f"_end-{execution}.json"
