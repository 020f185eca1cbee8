"""Handles: what is known of state without reading it.

They travel in acknowledgements from tasks to the JobMaster, lie in the metadata of checkpoints, and
travel back to the tasks that are restored from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from flinkray.core.key_groups import KeyGroupRange
from flinkray.core.message import message, register
from flinkray.core.schema import stored, with_defaults


@stored("checkpoint.InlineState")
@message
class InlineState:
    """Small state, in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


@stored("checkpoint.FileState")
@message
class FileState:
    """State in a file of its own.

    *path* is absolute, a path or a URI; in stored metadata it is relative to the directory of the
    metadata, where the file lies in the same storage as that (see
    :mod:`flinkray.checkpoint.metadata`).
    """

    path: str
    size: int


StateLocation = InlineState | FileState


@stored("checkpoint.KeyedStatePart")
@message
class KeyedStatePart:
    """One written snapshot of keyed state: everything, or what had changed since the one before."""

    location: StateLocation
    is_whole: bool


@stored("checkpoint.KeyedStateHandle")
@message
class KeyedStateHandle:
    """The keyed state of one operator's subtask: a whole snapshot and the changes after it.

    Parts that are files may be shared with earlier and later checkpoints.
    """

    first_key_group: int
    last_key_group: int
    parts: tuple[KeyedStatePart, ...]
    """Oldest first; the first is whole, and no other."""

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)


@stored("checkpoint.OperatorStateMode")
@register
class OperatorStateMode(Enum):
    """What becomes of an operator state when the parallelism changes."""

    SPLIT_DISTRIBUTE = "list"
    """Its elements are divided among the new subtasks."""
    UNION = "union"
    """Every subtask is given the elements of all."""
    BROADCAST = "broadcast"
    """Every subtask has the same; each is given one copy."""


@stored("checkpoint.NamedOperatorState")
@message
class NamedOperatorState:
    """Where the elements of one state begin in the bytes of a handle.

    Each element says itself where it ends, so that a reader which is given some offsets reads
    nothing else.
    """

    name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...]


@stored("checkpoint.OperatorStateHandle")
@message
class OperatorStateHandle:
    """The operator state that one subtask wrote, or the part of it that a subtask is given."""

    location: StateLocation
    states: tuple[NamedOperatorState, ...]


@stored("checkpoint.ChannelStateHandle")
@message
class ChannelStateHandle:
    """Data that was in flight in one channel when an unaligned checkpoint overtook it.

    *gate* is the number of the input, or of the result; *channel* that of the channel or
    subpartition in it.
    """

    gate: int
    channel: int
    location: StateLocation


@stored("checkpoint.CarriedFile")
@message
class CarriedFile:
    """A copy of a file that an operator's state refers to, which lies elsewhere itself."""

    name: str
    """By which the operator knows it."""
    location: StateLocation
    checksum: int
    """CRC-32 of its bytes."""


@stored("checkpoint.OperatorSubtaskState", version=2, migrations={1: with_defaults})
@message
class OperatorSubtaskState:
    """All state of one subtask of an operator; handles of several subtasks after a rescaling."""

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
        """Where all of it lies, shared files included."""
        yield from (handle.location for handle in self.operator_state)
        yield from (part.location for handle in self.keyed_state for part in handle.parts)
        yield from (handle.location for handle in self.input_channels)
        yield from (handle.location for handle in self.result_subpartitions)
        yield from (file.location for file in self.files)

    def shared_files(self) -> Iterator[FileState]:
        """Those that other checkpoints may refer to as well."""
        for handle in self.keyed_state:
            for part in handle.parts:
                if isinstance(part.location, FileState):
                    yield part.location


@stored("checkpoint.TaskState")
@message
class TaskState:
    """What a task acknowledges with: the states of its operators, by operator id."""

    operators: dict[str, OperatorSubtaskState]
    is_finished: bool = False
    """The task has come to the end of its data; its operators have nothing to do any more."""
