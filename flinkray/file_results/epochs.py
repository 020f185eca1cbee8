"""Rows of a stream that are handed over checkpoint by checkpoint, as Parquet files.

An *epoch* is what a stream has put out between two checkpoints.  Writers put its rows into
directories of their own, which nobody looks at.  When the checkpoint is complete, one committer
publishes which of them the epoch consists of.  Whoever takes epochs does so in their order, and
notes each when it is done with it: it is handed over again until then, always the same rows under
the same id.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.fs

from flinkray.file_results.directory import ResultDirectory

_VERSION = 1
_DONE = re.compile(r"_done-(\d+)\.json")
_EPOCH = re.compile(r"(\d+)\.json")
_ROWS = "rows"


class EpochPart(NamedTuple):
    """What one writer has added to an epoch: a sealed directory."""

    name: str
    rows: int
    columns: str
    """Their names and types, for people; equal for equal columns."""
    location: str = ""
    """Where the epochs are that it was written for."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One that is published."""

    checkpoint_id: int
    parts: tuple[EpochPart, ...]

    @property
    def rows(self) -> int:
        """Their number."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class EpochsDone:
    """How far whoever takes epochs has come."""

    checkpoint_id: int = -1
    """Of the last epoch that is done with; -1: of none."""
    rows: int = 0
    """In all epochs up to that."""


class Epochs:
    """At a path of this machine or a URI.  All methods block, and raise OSError while the storage
    fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self.location = self._directory.location

    # --- for who writes ---------------------------------------------------------------------------

    def new_part(self) -> tuple[str, ResultDirectory]:
        """A directory for rows of a writer, and its name."""
        name = uuid.uuid4().hex
        return name, self.part(name)

    def sync(self, name: str) -> None:
        """A part whose writer has finished is on the disk: a checkpoint may tell of it."""
        self.part(name).sync(self._directory)

    def publish(self, checkpoint_id: int, parts: Sequence[EpochPart]) -> None:
        """The checkpoint is complete.  May be done again, with the same parts; epochs are published
        in the order of their ids."""
        content = {"version": _VERSION, "parts": [tuple(part) for part in parts]}
        self._directory.write_json(f"{checkpoint_id:020d}.json", content)

    def end(self, execution: str) -> None:
        """No other epochs follow, unless the stream goes back to an earlier checkpoint as a whole,
        in another execution."""
        # Each execution in a file of its own: one that is over and does not know it says nothing of
        # the one that is there.
        self._directory.write_json(_ended(execution), {"version": _VERSION})

    # --- for who takes them -----------------------------------------------------------------------

    def is_ended(self, execution: str) -> bool:
        """Whether all epochs are published; to be asked before :meth:`published`."""
        return self._directory.read_json(_ended(execution)) is not None

    def waiting(self) -> int:
        """How many are published, and nobody is done with them."""
        names = self._names()
        done = max(_numbers(_DONE, names), default=-1)
        return sum(number > done for number in _numbers(_EPOCH, names))

    def published(self, after: int) -> list[Epoch]:
        """Those whose ids are above *after*, in order."""
        ids = sorted(_numbers(_EPOCH, self._names()))
        return [epoch for i in ids if i > after and (epoch := self._epoch(i)) is not None]

    def _epoch(self, checkpoint_id: int) -> Epoch | None:
        content = self._directory.read_json(f"{checkpoint_id:020d}.json")
        if content is None:  # done with, and forgotten, by another one meanwhile
            return None
        return Epoch(checkpoint_id, tuple(EpochPart(*part) for part in content["parts"]))

    def part(self, name: str) -> ResultDirectory:
        """Of an epoch."""
        return ResultDirectory(f"{self.location}/{_ROWS}/{name}")

    def note_done(self, epoch: Epoch, before: EpochsDone) -> EpochsDone:
        """It is done with, as the next one behind *before*."""
        done = EpochsDone(epoch.checkpoint_id, before.rows + epoch.rows)
        # Each in a file of its own: one who does not know yet that another has taken over cannot
        # set back how far that has come.
        self._directory.write_json(
            _done(done.checkpoint_id), {"version": _VERSION, "rows": done.rows}
        )
        return done

    def last_done(self) -> EpochsDone:
        """How far they are done with."""
        last = max(_numbers(_DONE, self._names()), default=-1)
        if last < 0:
            return EpochsDone()
        content = self._directory.read_json(_done(last))
        return self.last_done() if content is None else EpochsDone(last, content["rows"])

    def forget(self, done: EpochsDone) -> None:
        """Delete the notes before that one, which nobody needs any more."""
        for number in _numbers(_DONE, self._names()):
            if number < done.checkpoint_id:
                self._delete(_done(number))

    # --- for who writes again ---------------------------------------------------------------------

    def delete(self, last: int) -> None:
        """Epochs up to that id, and their rows.  Not whoever takes them does so when it is done,
        but whoever writes them, which knows whether they are needed for a savepoint."""
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
