"""Handles: descriptions of stored state, which are used without reading the state.

Handles travel in acknowledgements from tasks to the JobMaster, are stored in the metadata of
checkpoints, and travel back to the tasks that are restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.message import message, register
from flinkray.core.schema import stored, with_defaults


@stored("checkpoint.InlineState")
@message
class InlineState:
    """Small state that is stored in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Size of the state in bytes."""
        return len(self.data)


@stored("checkpoint.FileState")
@message
class FileState:
    """State in a separate file.

    *path* is an absolute path or a URI. In stored metadata, it is relative to the directory of the
    metadata if both are in the same storage (see :mod:`flinkray.checkpoint.metadata`).
    """

    path: str
    size: int


StateLocation = InlineState | FileState


@stored("checkpoint.KeyedStatePart")
@message
class KeyedStatePart:
    """Refers to one written snapshot of keyed state. *is_whole*: it has all entries; else only the
    entries that changed since the previous snapshot."""

    location: StateLocation
    is_whole: bool


@stored("checkpoint.KeyedStateHandle")
@message
class KeyedStateHandle:
    """The keyed state of one subtask of an operator, for a range of key groups.

    It consists of a whole snapshot and the changes in later snapshots. Their files may also be used
    by earlier and later checkpoints.
    """

    first_key_group: int
    last_key_group: int
    parts: tuple[KeyedStatePart, ...]
    """The snapshots, oldest first. Only the first is whole."""

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)


@stored("checkpoint.OperatorStateMode")
@register
class OperatorStateMode(Enum):
    """How an operator state is redistributed when the parallelism changes."""

    SPLIT_DISTRIBUTE = "list"
    """The elements are divided among the new subtasks."""
    UNION = "union"
    """Every subtask gets the elements of all subtasks."""
    BROADCAST = "broadcast"
    """The state is the same in every subtask; each new subtask gets one copy."""


@stored("checkpoint.NamedOperatorState")
@message
class NamedOperatorState:
    """Says where the elements of one operator state are: their offsets in the bytes that the
    :class:`OperatorStateHandle` refers to."""

    name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...]


@stored("checkpoint.OperatorStateHandle")
@message
class OperatorStateHandle:
    """Refers to the bytes of operator state that one subtask wrote. *states* lists the elements
    that belong to this handle: all of the subtask's, or the share that a restored subtask gets."""

    location: StateLocation
    states: tuple[NamedOperatorState, ...]


@stored("checkpoint.ChannelStateHandle")
@message
class ChannelStateHandle:
    """Refers to the elements of a channel that the barrier of an unaligned checkpoint overtook."""

    gate: int
    channel: int
    location: StateLocation


@stored("checkpoint.CarriedFile")
@message
class CarriedFile:
    """Describes a file that a savepoint has copied for an operator, whose state refers to the file
    by name. The original belongs to the job and is stored elsewhere."""

    name: str
    """Name by which the operator refers to the file."""
    location: StateLocation
    checksum: int
    """CRC-32 of the file's bytes."""


@stored("checkpoint.OperatorSubtaskState", version=2, migrations={1: with_defaults})
@message
class OperatorSubtaskState:
    """Handles of all state of one subtask of an operator.

    If the parallelism has changed since the checkpoint, they come from several earlier subtasks.
    """

    operator_state: tuple[OperatorStateHandle, ...] = ()
    keyed_state: tuple[KeyedStateHandle, ...] = ()
    input_channels: tuple[ChannelStateHandle, ...] = ()
    result_subpartitions: tuple[ChannelStateHandle, ...] = ()
    files: tuple[CarriedFile, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        return not (
            self.operator_state
            or self.keyed_state
            or self.input_channels
            or self.result_subpartitions
            or self.files
        )

    def locations(self) -> Iterator[StateLocation]:
        """Yield the location of every part of the subtask's state, shared files included."""
        yield from (handle.location for handle in self.operator_state)
        yield from (part.location for handle in self.keyed_state for part in handle.parts)
        yield from (handle.location for handle in self.input_channels)
        yield from (handle.location for handle in self.result_subpartitions)
        yield from (file.location for file in self.files)

    def shared_files(self) -> Iterator[FileState]:
        """Yield the files of keyed state that other checkpoints may refer to as well."""
        for handle in self.keyed_state:
            for part in handle.parts:
                if isinstance(part.location, FileState):
                    yield part.location


@stored("checkpoint.TaskState")
@message
class TaskState:
    """The state in a task's acknowledgement: the states of its operators, by operator id."""

    operators: dict[str, OperatorSubtaskState]
    is_finished: bool = False
    """Whether the task has reached the end of its data, so that its operators have finished."""
