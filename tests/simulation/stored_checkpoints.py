"""What a simulated disk has of checkpoints and savepoints, as if its power went now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

from flinkray.checkpoint import locations
from flinkray.checkpoint.handles import FileState, OperatorSubtaskState
from flinkray.checkpoint.layout import METADATA
from flinkray.checkpoint.metadata import CheckpointMetadata, SnapshotKind
from flinkray.checkpoint.metadata_file import _with_paths
from flinkray.core.ids import JobID
from flinkray.ha.entries import decode_entry
from flinkray.testing.simulation.disk import SimulatedDisk

SAVEPOINTS = "savepoints"
"""Where all jobs put theirs."""


class StoredCheckpoints:
    """Of all jobs.

    A savepoint is complete as soon as its metadata are durable; so is a checkpoint of a job that
    was cancelled, which :meth:`keep` is told of.  Both are somebody's own from then on: nothing
    deletes them, and no file of them changes.
    """

    def __init__(self, disk: SimulatedDisk, violated: Callable[[str], None]) -> None:
        self._disk = disk
        self._violated = violated
        self._contents: dict[str, int] = {}
        """Checksums of files when they were acknowledged, or seen first."""
        self._kept: dict[str, CheckpointMetadata] = {}
        """By the path of the metadata."""
        self._changes = self._losses = -1

    def note(self, state: OperatorSubtaskState) -> None:
        """It is acknowledged now."""
        for file in state.locations():
            if isinstance(file, FileState):
                path = path_of(file.path)
                data = self._disk.content(path)
                if data is not None:
                    self._contents.setdefault(path, crc32(data))

    def metadata(self, location: str) -> CheckpointMetadata | None:
        """By the location of their file; None: they are not durable."""
        data = self._disk.durable(path_of(location))
        if data is None:
            return None
        directory = locations.parent_of(location)
        metadata = decode_entry(data, CheckpointMetadata)
        return _with_paths(metadata, lambda text: locations.resolved(text, directory))

    def check_files(self, metadata: CheckpointMetadata) -> None:
        """They are durable, and what they were."""
        what = f"{metadata.kind.value} {metadata.checkpoint_id}"
        for operator in metadata.operators:
            files = [it for subtask in operator.subtasks for it in subtask.state.locations()]
            for file in (*files, operator.coordinator):
                if isinstance(file, FileState):
                    self._check_file(what, file)

    def _check_file(self, what: str, file: FileState) -> None:
        path = path_of(file.path)
        data = self._disk.durable(path)
        if data is None:
            self._violated(f"{what} is complete without {path}")
        elif len(data) != file.size or crc32(data) != self._contents.setdefault(path, crc32(data)):
            self._violated(f"{what}: {path} is not what was acknowledged")

    # --- what belongs to people -------------------------------------------------------------------

    def check(self) -> None:
        """At every step."""
        disk = self._disk
        if disk.changes == self._changes:
            return
        self._changes = disk.changes
        for path in disk.paths():
            if path.startswith(f"{SAVEPOINTS}/") and path.endswith(f"/{METADATA}"):
                self.keep(disk.url(path))
        if disk.losses != self._losses:
            self._losses = disk.losses
            for location, metadata in self._kept.items():
                if disk.durable(path_of(location)) is None:
                    self._violated(f"{location} was complete, and is gone")
                self.check_files(metadata)

    def keep(self, location: str) -> None:
        """Nobody but its owner may delete it from now on, if it is durable."""
        if location not in self._kept:
            metadata = self.metadata(location)
            if metadata is not None:
                self._kept[location] = metadata
                self.check_files(metadata)

    def is_kept(self, location: str) -> bool:
        """Whether it is complete, by the location of its metadata."""
        return location in self._kept

    def left_by(self, job_id: JobID) -> list[tuple[int, str]]:
        """Ids and metadata of what there is of a job, rising."""
        return sorted(
            (metadata.checkpoint_id, location)
            for location, metadata in self._all()
            if metadata.job_id == job_id
        )

    def _all(self) -> Iterator[tuple[str, CheckpointMetadata]]:
        for path in self._disk.paths():
            if path.endswith(f"/{METADATA}"):
                location = self._disk.url(path)
                metadata = self.metadata(location)
                if metadata is not None:
                    yield location, metadata

    def is_savepoint(self, location: str) -> bool:
        """Whether one that is kept is a savepoint, or else a checkpoint."""
        return self._kept[location].kind is SnapshotKind.SAVEPOINT

    def has_finished(self, location: str, uid: str) -> bool:
        """Whether a subtask of that operator had, in one that is kept."""
        operators = {operator.uid: operator for operator in self._kept[location].operators}
        return any(subtask.is_finished for subtask in operators[uid].subtasks)


def path_of(location: str) -> str:
    """On its disk."""
    return locations.path_of(location).strip("/")
