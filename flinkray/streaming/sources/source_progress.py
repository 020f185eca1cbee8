"""How far a source is: all that its coordinator knows, so that another one can go on from it."""

from __future__ import annotations

from flinkray.core.message import message
from flinkray.streaming.sources.enumerator_state import EnumeratorState


@message
class AssignedSplit:
    """A split that goes back if its reader does."""

    number: int
    """Of its event."""
    split: bytes
    """Encoded, as readers are told it."""


@message
class ReaderState:
    """What one reader was told, and what it may have to be told again."""

    subtask: int
    restored_from: int
    attempt: int | None
    is_added: bool
    requests: int
    checkpoint_id: int
    confirmed: int
    events: tuple[bytes, ...]
    """Behind those that are confirmed."""
    given: int
    """How many of all events were splits."""
    asked_at: int
    """How many events there were when it asked last."""
    is_done: bool
    assigned: tuple[AssignedSplit, ...]
    cuts: tuple[tuple[int, int], ...]
    """Checkpoint, and how many events belong before it."""


@message
class SubtaskReset:
    """A reader that goes back, when there is an enumerator to give its splits back to."""

    subtask: int
    attempt: int
    """That goes on from the checkpoint."""
    checkpoint_id: int


@message
class SourceProgress:
    """A cut between two calls of the enumerator."""

    parallelism: int
    """0: it has not begun."""
    restored_from: int
    cuts: tuple[int, ...]
    """Checkpoints that are not known to be over."""
    enumerator: EnumeratorState | None
    """None: it begins anew."""
    readers: tuple[ReaderState, ...]
    resets: tuple[SubtaskReset, ...] = ()
    """Of those readers, which are still what they were."""
