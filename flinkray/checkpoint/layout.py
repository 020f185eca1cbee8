"""Checkpoints in directories: their layout, search and deletion.

::

    <checkpoint directory>/<job id>/chk-<id>/_metadata, <exclusive files>
                                    shared/<files of keyed state>
    <savepoint directory>/savepoint-<job>-<random>/_metadata, <files>

All functions block, and raise :class:`~flinkray.checkpoint.errors.CheckpointStorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    storage_errors,
)
from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.checkpoint.state_files import StateWriter, delete_state, files_at, go_on, random_name
from flinkray.core.ids import JobID
from flinkray.core.job_options import CHECKPOINTING_INLINE_THRESHOLD

METADATA = "_metadata"
SHARED = "shared"
CHECKPOINT = "chk-"
SAVEPOINT = "savepoint-"

DEFAULT_INLINE_THRESHOLD = CHECKPOINTING_INLINE_THRESHOLD.default


class JobCheckpointStorage:
    """The checkpoint directory of one job.

    Args:
        directory: the directory for the checkpoints of all jobs; a path or a URI.
        inline_threshold: state with fewer bytes is stored in its handle.
    """

    def __init__(
        self,
        directory: str,
        job_id: JobID,
        inline_threshold: int = DEFAULT_INLINE_THRESHOLD,
    ) -> None:
        self._inline_threshold = inline_threshold
        self.directory = locations.join(locations.normal(directory), job_id.hex())
        """Checkpoint directory of this job."""

    def checkpoint_directory(self, checkpoint_id: int) -> str:
        return locations.join(self.directory, f"{CHECKPOINT}{checkpoint_id}")

    @property
    def shared_directory(self) -> str:
        return locations.join(self.directory, SHARED)

    def checkpoint_writer(self, checkpoint_id: int) -> StateWriter:
        """Return a writer for the state of a checkpoint."""
        directory = self.checkpoint_directory(checkpoint_id)
        return state_writer(directory, self._inline_threshold, is_savepoint=False)

    def savepoint_writer(self, directory: str) -> StateWriter:
        """Return a writer for the state of a savepoint, which shares no files."""
        return state_writer(directory, self._inline_threshold, is_savepoint=True)


def state_writer(
    directory: str,
    inline_threshold: int,
    *,
    is_savepoint: bool,
    check: Callable[[], None] = go_on,
) -> StateWriter:
    """Return a writer for the state of the checkpoint or savepoint in *directory*.

    *inline_threshold*: state with fewer bytes is stored in its handle instead of a file. *check* is
    called before each piece is written; an error that it raises ends the writing.
    """
    directory = locations.normal(directory)
    shared = directory if is_savepoint else shared_directory(directory)
    return StateWriter(directory, shared, inline_threshold, check=check)


def shared_directory(checkpoint_directory: str) -> str:
    """Return the directory, beside *checkpoint_directory*, of files that checkpoints share."""
    directory = locations.parent_of(locations.normal(checkpoint_directory))
    return locations.join(directory, SHARED)


def savepoint_directory(target: str, job_id: JobID, name: str | None = None) -> str:
    """Return the location of a new savepoint's directory; creates nothing.

    Args:
        target: the directory that a user has named; the new directory is below *target*.
        name: last part of the new directory's name. None: a random name.
    """
    own = name or random_name()[:12]
    return locations.join(locations.normal(target), f"{SAVEPOINT}{job_id.hex()[:6]}-{own}")


def metadata_path(location: str) -> str:
    """Return the location of the metadata file, given this location or that of its directory."""
    location = locations.normal(location)
    if locations.name_of(location) == METADATA:
        return location
    return locations.join(location, METADATA)


def check_is_directory(location: str) -> None:
    """Raise CheckpointNotFoundError if the directory does not exist.
    A directory without a checkpoint is accepted."""
    directory = locations.normal(location)
    with storage_errors(directory, "read"):
        is_there = files_at(directory).is_directory(directory)
    if not is_there:
        raise CheckpointNotFoundError(directory, "there is no such directory")


def find_checkpoints(directory: str) -> list[str]:
    """Return the locations of the complete checkpoints and savepoints in a directory and in job
    directories below: first checkpoints, by rising id, then savepoints."""
    directory = locations.normal(directory)
    with storage_errors(directory, "read"):
        found = list(_found(directory))
        for name in files_at(directory).names(directory):
            if len(name) == 2 * JobID.SIZE:
                found += _found(locations.join(directory, name))
    return [path for _, path in sorted(found)]


def _found(directory: str) -> Iterator[tuple[tuple[int, int, str], str]]:
    files = files_at(directory)
    for name in files.names(directory):
        number = name.removeprefix(CHECKPOINT)
        is_checkpoint = name.startswith(CHECKPOINT) and number.isdecimal()
        path = locations.join(directory, name)
        if (is_checkpoint or name.startswith(SAVEPOINT)) and METADATA in files.names(path):
            yield (0, int(number), "") if is_checkpoint else (1, 0, name), path


# --- deletion ---------------------------------------------------------------------------------


def delete_checkpoint(location: str, files: Iterable[StateLocation]) -> None:
    """Delete a checkpoint's metadata, then *files*, then the checkpoint's directory if it is empty.
    *files*: the files of the checkpoint that no other checkpoint refers to. The metadata is deleted
    first, so that an interrupted deletion leaves no checkpoint that looks complete."""
    path = metadata_path(location)
    directory = locations.parent_of(path)
    with storage_errors(path, "delete"):
        files_at(directory).entries(directory).delete(METADATA)
    for file in files:
        delete_state(file)
    remove_empty_directory(directory)


def delete_directory(directory: str) -> None:
    """Delete the directory of an unwanted checkpoint with its contents; no error if missing.
    Metadata, if any, is deleted first."""
    directory = locations.normal(directory)
    files = files_at(directory)
    with storage_errors(directory, "delete"):
        files.entries(directory).delete(METADATA)
        for name in files.names(directory):
            files.delete(locations.join(directory, name))
    remove_empty_directory(directory)


def delete_checkpoints_of_job(directory: str) -> None:
    """Delete all checkpoints, complete or not, in *directory*, the directory of a job that retains
    none. Savepoints that a user has put there stay. If a checkpoint cannot be deleted, the others
    are still deleted, and the first error is raised."""
    directory = locations.normal(directory)
    with storage_errors(directory, "delete"):
        names = files_at(directory).names(directory)
    first_error: CheckpointStorageError | None = None
    for name in names:
        if name == SHARED or name.startswith(CHECKPOINT):
            try:
                delete_directory(locations.join(directory, name))
            except CheckpointStorageError as error:
                first_error = first_error or error
    if first_error is not None:
        raise first_error
    remove_empty_directory(directory)


def remove_empty_directory(directory: str) -> None:
    """Remove the directory if it is empty."""
    with storage_errors(directory, "delete"):
        files_at(directory).remove_if_empty(directory)


def exclusive_files(metadata: CheckpointMetadata) -> Iterator[FileState]:
    """Yield the files that no other checkpoint uses: all but those of keyed state."""
    for operator in metadata.operators:
        if isinstance(operator.coordinator, FileState):
            yield operator.coordinator
        for subtask in operator.subtasks:
            shared = set(subtask.state.shared_files())
            for location in subtask.state.locations():
                if isinstance(location, FileState) and location not in shared:
                    yield location
