"""The progress of a source: the state of its enumerator, and its coordinator's whole state."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.state.snapshots import SerializerSnapshot

if TYPE_CHECKING:
    from flinkray.state.state_serializer import StateSerializer


@message
class AssignedSplit:
    """A split that was assigned to a reader after the last complete checkpoint. It goes back to the
    enumerator if the reader restarts from a checkpoint before the assignment."""

    number: int
    """Number of the event that assigned the split."""
    split: bytes
    """The split in the encoded form that readers get."""


@message
class ReaderState:
    """What a source's coordinator knows of one reader: counts of its requests and events, and the
    events that may have to be sent again."""

    subtask: int
    restored_from: int
    attempt: int | None
    is_added: bool
    """Whether the attempt has reported, so that the enumerator knows the attempt. False: the
    coordinator knows it only from a reset or a checkpoint, or has only assigned splits to it."""
    requests: int
    checkpoint_id: int
    confirmed: int
    events: tuple[bytes, ...]
    """Events that the reader has not confirmed yet."""
    given: int
    """Number of events that were splits."""
    asked_at: int
    """Number of events at the reader's last split request."""
    is_done: bool
    assigned: tuple[AssignedSplit, ...]
    cuts: tuple[tuple[int, int], ...]
    """Cuts of checkpoints: (checkpoint id, number of events before the cut)."""


@message
class SubtaskReset:
    """A reset of a reader to a checkpoint. It waits until there is an enumerator, which takes back
    the splits that the reader got after the checkpoint."""

    subtask: int
    attempt: int
    """Attempt of the subtask that continues from the checkpoint."""
    checkpoint_id: int


@message
class SourceProgress:
    """The whole state of a source's coordinator, between two calls of its enumerator."""

    parallelism: int
    """Number of readers. 0: the coordinator has not started."""
    restored_from: int
    cuts: tuple[int, ...]
    """Ids of checkpoints that may still be completed."""
    enumerator: EnumeratorState | None
    """State of the enumerator. None: the enumerator starts anew."""
    readers: tuple[ReaderState, ...]
    resets: tuple[SubtaskReset, ...] = ()
    """Pending resets. The states of these readers are those before the reset."""


@cache
def _serializer() -> StateSerializer:
    """Return the serializer of enumerator states. The serializer is loaded only when a state is
    written or read, because clients do not need it."""
    from flinkray.state.descriptors import ListStateDescriptor
    from flinkray.state.state_serializer import StateSerializer

    return StateSerializer(ListStateDescriptor("source-enumerator"))


@stored("streaming.EnumeratorState")
@message
class EnumeratorState:
    """The stored state of an enumerator: the serialized result of ``snapshot_state``."""

    serializer: SerializerSnapshot
    """How the state was written, and which parts only pickle covers."""
    data: bytes


def write_enumerator_state(state: Any) -> EnumeratorState:
    """Return the state of an enumerator, serialized. Raises StateError if it cannot be stored."""
    writer = _serializer().writer()
    data = writer.write_element(state)
    return EnumeratorState(writer.snapshot(), data)


def read_enumerator_state(stored_state: EnumeratorState) -> Any:
    """Return the state that :func:`write_enumerator_state` was given. Raises StateMigrationError,
    with the reason, if it cannot be read any more."""
    _serializer().check(stored_state.serializer)
    ((state,),) = _serializer().read_elements([stored_state.data])
    return state
