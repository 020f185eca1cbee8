"""Writes and reads the metadata file of a checkpoint or savepoint.

In the file, paths are relative to its directory, so that a moved checkpoint stays readable. All
functions block, and raise :class:`~flinkray.checkpoint.errors.CheckpointStorageError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
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
from flinkray.checkpoint.layout import (
    CHECKPOINT,
    METADATA,
    SAVEPOINT,
    check_is_directory,
    find_checkpoints,
    metadata_path,
)
from flinkray.checkpoint.metadata import CheckpointedOperator, CheckpointMetadata
from flinkray.checkpoint.state_files import files_at
from flinkray.core.errors import StoredFormatError
from flinkray.ha.entries import DamagedEntryError, decode_entry, encode_entry, is_entry


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
        for file in operator.files():
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


def _not_there(directory: str, path: str) -> CheckpointNotFoundError | IncompleteCheckpointError:
    check_is_directory(directory)
    with storage_errors(directory, "read"):
        names = files_at(directory).names(directory)
    inside = find_checkpoints(directory)
    if inside:
        return CheckpointNotFoundError(
            directory, f"it is no checkpoint, but contains some: name one, such as {inside[-1]}"
        )
    if not locations.name_of(directory).startswith((CHECKPOINT, SAVEPOINT)):
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
