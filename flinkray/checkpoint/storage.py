"""Checkpoints in directories: their layout, their metadata, and what is deleted with them.

::

    <checkpoint directory>/<job id>/chk-<id>/_metadata, <exclusive files>
                                    shared/<files of keyed state>
    <savepoint directory>/savepoint-<job>-<random>/_metadata, <files>

Blocking.  All functions raise :class:`~flinkray.checkpoint.errors.CheckpointStorageError`.
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
from flinkray.checkpoint.state_files import StateWriter, delete_state, go_on, random_name
from flinkray.checkpoint.storages import files_at
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
    """Where the checkpoints of one job lie.

    Args:
        directory: of all jobs; a path or a URI.
        inline_threshold: state of fewer bytes lies in its handle.
    """

    def __init__(
        self,
        directory: str,
        job_id: JobID,
        inline_threshold: int = DEFAULT_INLINE_THRESHOLD,
    ) -> None:
        self._inline_threshold = inline_threshold
        self.directory = locations.join(locations.normal(directory), job_id.hex())
        """Of this job."""

    def checkpoint_directory(self, checkpoint_id: int) -> str:
        return locations.join(self.directory, f"{_CHECKPOINT}{checkpoint_id}")

    @property
    def shared_directory(self) -> str:
        return locations.join(self.directory, SHARED)

    def checkpoint_writer(self, checkpoint_id: int) -> StateWriter:
        """For the state of a checkpoint."""
        directory = self.checkpoint_directory(checkpoint_id)
        return state_writer(directory, self._inline_threshold, is_savepoint=False)

    def savepoint_writer(self, directory: str) -> StateWriter:
        """For the state of a savepoint, which shares nothing."""
        return state_writer(directory, self._inline_threshold, is_savepoint=True)


def state_writer(
    directory: str,
    inline_threshold: int,
    *,
    is_savepoint: bool,
    check: Callable[[], None] = go_on,
) -> StateWriter:
    """For the state of a checkpoint or savepoint, by the directory that it was given.

    *check* is called before each piece is written; what it raises ends the writing.
    """
    directory = locations.normal(directory)
    shared = directory if is_savepoint else shared_directory(directory)
    return StateWriter(directory, shared, inline_threshold, check=check)


def shared_directory(checkpoint_directory: str) -> str:
    """What the checkpoints of a job share lies there, by the directory of one of them."""
    directory = locations.parent_of(locations.normal(checkpoint_directory))
    return locations.join(directory, SHARED)


def savepoint_directory(target: str, job_id: JobID, name: str | None = None) -> str:
    """One below the directory that a user has named.

    Args:
        name: its own part of the name; None: a new one.
    """
    own = name or random_name()[:12]
    return locations.join(locations.normal(target), f"{_SAVEPOINT}{job_id.hex()[:6]}-{own}")


# --- metadata ---------------------------------------------------------------------------------


def write_metadata(directory: str, metadata: CheckpointMetadata) -> str:
    """Make the checkpoint in *directory* complete, atomically and durably; where its metadata
    are."""
    directory = locations.normal(directory)
    path = locations.join(directory, METADATA)
    stored = _with_paths(metadata, lambda it: locations.relative(it, directory))
    data = encode_entry(stored)
    with storage_errors(path, "write"):
        entries_directory = files_at(directory).entries(directory)
        entries_directory.write(METADATA, data)
    return path


def read_metadata(location: str) -> CheckpointMetadata:
    """Those in a checkpoint's directory, or in a file; the paths in them are absolute."""
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
    """The same, if all files of the checkpoint are there and have their sizes.  Each directory is
    listed once; what is in the files is not looked at.

    Raises:
        CheckpointNotFoundError: a file is missing.
        CorruptCheckpointError: a file has another size.
    """
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
    """Delete a savepoint, with its files and, if nothing else is in it, its directory.

    Raises:
        CheckpointNotFoundError: there is none; or it is a checkpoint, which is its job's.
    """
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
    """Of a checkpoint that a user has named by its directory or by its metadata."""
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
    """Raises CheckpointNotFoundError: there is no such directory, be it without a checkpoint."""
    directory = locations.normal(location)
    with storage_errors(directory, "read"):
        is_there = files_at(directory).is_directory(directory)
    if not is_there:
        raise CheckpointNotFoundError(directory, _NO_DIRECTORY)


def find_checkpoints(directory: str) -> list[str]:
    """The complete checkpoints and savepoints right in a directory, of one job or of several, or
    in the directories of jobs in it: checkpoints by rising id, then savepoints."""
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
    """A checkpoint that is not retained any more, with those *files* that belong to it alone.

    Its metadata go first, so that nobody takes what is left for a checkpoint.
    """
    path = metadata_path(location)
    directory = locations.parent_of(path)
    with storage_errors(path, "delete"):
        files_at(directory).entries(directory).delete(METADATA)
    for file in files:
        delete_state(file)
    remove_empty_directory(directory)


def delete_directory(directory: str) -> None:
    """The directory of a checkpoint that is not to be, with all that is in it; fine when there is
    none.  Should it have metadata, they go first."""
    directory = locations.normal(directory)
    files = files_at(directory)
    with storage_errors(directory, "delete"):
        files.entries(directory).delete(METADATA)
        for name in files.names(directory):
            files.delete(locations.join(directory, name))
    remove_empty_directory(directory)


def delete_checkpoints_of_job(directory: str) -> None:
    """All that is right in the directory of a job that retains nothing, complete or not; savepoints
    that a user has put there stay.  One that cannot be deleted keeps no other."""
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
    """One that is not empty stays."""
    with storage_errors(directory, "delete"):
        files_at(directory).remove_if_empty(directory)


def exclusive_files(metadata: CheckpointMetadata) -> Iterator[FileState]:
    """Those that no other checkpoint refers to."""
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
