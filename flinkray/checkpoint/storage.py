"""Checkpoints in directories: their layout, metadata and deletion.

::

    <checkpoint directory>/<job id>/chk-<id>/_metadata, <exclusive files>
                                    shared/<files of keyed state>
    <savepoint directory>/savepoint-<job>-<random>/_metadata, <files>

All functions block, and raise :class:`~flinkray.checkpoint.errors.CheckpointStorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    UnknownCheckpointFormatError,
    storage_errors,
)
from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    OperatorSubtaskState,
    StateLocation,
)
from flinkray.checkpoint.metadata import CheckpointedOperator, CheckpointMetadata, SnapshotKind
from flinkray.checkpoint.state_files import StateWriter, delete_state, files_at, go_on, random_name
from flinkray.core.errors import StoredFormatError
from flinkray.core.ids import JobID
from flinkray.core.job_options import CHECKPOINTING_INLINE_THRESHOLD
from flinkray.ha.entries import DamagedEntryError, decode_entry, encode_entry, is_entry

METADATA = "_metadata"
SHARED = "shared"
_CHECKPOINT = "chk-"
_SAVEPOINT = "savepoint-"
_NO_DIRECTORY = "there is no such directory"

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
        return locations.join(self.directory, f"{_CHECKPOINT}{checkpoint_id}")

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
    return locations.join(locations.normal(target), f"{_SAVEPOINT}{job_id.hex()[:6]}-{own}")


# --- metadata ---------------------------------------------------------------------------------


def write_metadata(directory: str, metadata: CheckpointMetadata) -> str:
    """Write a checkpoint's metadata, atomically and durably; this completes the checkpoint.
    Returns the location of the metadata."""
    directory = locations.normal(directory)
    path = locations.join(directory, METADATA)
    stored = _with_paths(metadata, lambda it: locations.relative(it, directory))
    data = encode_entry(stored)
    with storage_errors(path, "write"):
        entries_directory = files_at(directory).entries(directory)
        entries_directory.write(METADATA, data)
    return path


def read_metadata(location: str) -> CheckpointMetadata:
    """Return the metadata of the checkpoint at *location*, its directory or metadata file. Paths in
    the result are absolute."""
    path = metadata_path(location)
    directory = locations.parent_of(path)
    with storage_errors(path, "read"):
        data = files_at(directory).entries(directory).read(locations.name_of(path))
    if data is None:
        raise _not_there(directory, path)
    if not is_entry(data):
        raise UnknownCheckpointFormatError(
            path, "it is no metadata of a flinkray checkpoint; is it another system's?"
        )
    try:
        metadata = decode_entry(data, CheckpointMetadata)
    except DamagedEntryError as error:
        raise CorruptCheckpointError(path, f"{error}; restore another checkpoint") from error
    except StoredFormatError as error:
        raise UnknownCheckpointFormatError(path, str(error)) from error
    return _with_paths(metadata, lambda text: locations.resolved(text, directory))


def read_whole(location: str) -> CheckpointMetadata:
    """Return a checkpoint's metadata, after checking that its files exist with the recorded sizes.
    The content of the files is not read. Raises CheckpointNotFoundError if a file is missing,
    CorruptCheckpointError if its size differs."""
    metadata = read_metadata(location)
    sizes: dict[str, dict[str, int]] = {}
    for operator in metadata.operators:
        for file in _files_of(operator):
            directory, name = locations.parent_of(file.path), locations.name_of(file.path)
            if directory not in sizes:
                with storage_errors(directory, "read"):
                    sizes[directory] = files_at(directory).sizes(directory)
            size = sizes[directory].get(name)
            whose = f"the state of operator {operator.name!r} in {metadata_path(location)}"
            if size is None:
                raise CheckpointNotFoundError(
                    file.path, f"it is not there, and has {whose}; was it deleted, or not copied?"
                )
            if size != file.size:
                raise CorruptCheckpointError(
                    file.path,
                    f"it has {size} bytes instead of {file.size}, and {whose}: it was cut short or "
                    "changed; start from another savepoint",
                )
    return metadata


def _files_of(operator: CheckpointedOperator) -> Iterator[FileState]:
    states = [location for subtask in operator.subtasks for location in subtask.state.locations()]
    for location in (operator.coordinator, *states):
        if isinstance(location, FileState):
            yield location


def dispose_savepoint(location: str) -> None:
    """Delete a savepoint with its files, and its directory if nothing else is in the directory.
    Raises CheckpointNotFoundError if *location* has no savepoint, or has a checkpoint: only a
    checkpoint's job deletes the checkpoint."""
    path = metadata_path(location)
    directory = locations.parent_of(path)
    metadata = read_metadata(path)
    if metadata.kind is not SnapshotKind.SAVEPOINT:
        raise CheckpointNotFoundError(
            directory, f"it is a checkpoint of job {metadata.job_id}, and no savepoint"
        )
    files = [file for operator in metadata.operators for file in _files_of(operator)]
    own = [file for file in files if locations.parent_of(file.path) == directory]
    delete_checkpoint(path, own)


def metadata_path(location: str) -> str:
    """Return the location of the metadata file, given this location or that of its directory."""
    location = locations.normal(location)
    if locations.name_of(location) == METADATA:
        return location
    return locations.join(location, METADATA)


def _not_there(directory: str, path: str) -> CheckpointNotFoundError | IncompleteCheckpointError:
    files = files_at(directory)
    with storage_errors(directory, "read"):
        is_there, names = files.is_directory(directory), files.names(directory)
    if not is_there:
        return CheckpointNotFoundError(directory, _NO_DIRECTORY)
    inside = find_checkpoints(directory)
    if inside:
        return CheckpointNotFoundError(
            directory, f"it is no checkpoint, but contains some: name one, such as {inside[-1]}"
        )
    if not locations.name_of(directory).startswith((_CHECKPOINT, _SAVEPOINT)):
        return CheckpointNotFoundError(
            directory,
            f"it is no checkpoint or savepoint, or not a whole one: there is no file {path} "
            f"({len(names)} others are there)",
        )
    return IncompleteCheckpointError(
        path,
        "there is no such file: the checkpoint was never completed, or is being deleted; restore "
        f"another one ({len(names)} other files are there)",
    )


def check_is_directory(location: str) -> None:
    """Raise CheckpointNotFoundError if the directory does not exist.
    A directory without a checkpoint is accepted."""
    directory = locations.normal(location)
    with storage_errors(directory, "read"):
        is_there = files_at(directory).is_directory(directory)
    if not is_there:
        raise CheckpointNotFoundError(directory, _NO_DIRECTORY)


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
        number = name.removeprefix(_CHECKPOINT)
        is_checkpoint = name.startswith(_CHECKPOINT) and number.isdecimal()
        path = locations.join(directory, name)
        if (is_checkpoint or name.startswith(_SAVEPOINT)) and METADATA in files.names(path):
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
        if name == SHARED or name.startswith(_CHECKPOINT):
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


# --- paths in metadata ------------------------------------------------------------------------


def _with_paths(metadata: CheckpointMetadata, change: Callable[[str], str]) -> CheckpointMetadata:
    def moved(location: StateLocation) -> StateLocation:
        if isinstance(location, FileState):
            return FileState(change(location.path), location.size)
        return location

    return replace(
        metadata, operators=tuple(_operator(operator, moved) for operator in metadata.operators)
    )


Move = Callable[[StateLocation], StateLocation]


def _operator(operator: CheckpointedOperator, moved: Move) -> CheckpointedOperator:
    return replace(
        operator,
        coordinator=None if operator.coordinator is None else moved(operator.coordinator),
        subtasks=tuple(
            replace(subtask, state=_subtask(subtask.state, moved)) for subtask in operator.subtasks
        ),
    )


def _subtask(state: OperatorSubtaskState, moved: Move) -> OperatorSubtaskState:
    def keyed(handle: KeyedStateHandle) -> KeyedStateHandle:
        parts = (replace(part, location=moved(part.location)) for part in handle.parts)
        return replace(handle, parts=tuple(parts))

    return OperatorSubtaskState(
        tuple(replace(it, location=moved(it.location)) for it in state.operator_state),
        tuple(map(keyed, state.keyed_state)),
        tuple(replace(it, location=moved(it.location)) for it in state.input_channels),
        tuple(replace(it, location=moved(it.location)) for it in state.result_subpartitions),
        tuple(replace(it, location=moved(it.location)) for it in state.files),
    )
