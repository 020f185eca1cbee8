"""The progress of a source: its coordinator's whole state, from which another one continues."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.streaming.sources.enumerator_state import EnumeratorState


@message
class AssignedSplit:
    """A split that goes back to the enumerator if its reader goes back to a checkpoint."""

    number: int
    """Number of the event that assigned the split."""
    split: bytes
    """The split in the encoded form that readers get."""


@message
class ReaderState:
    """The events of one reader: counts, and the events that may have to be sent again."""

    subtask: int
    restored_from: int
    attempt: int | None
    is_added: bool
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
    """A reset of a reader that waits for an enumerator to take back the reader's splits."""

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
