"""Defines LogicalSlot, the share that one subtask has of a slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.shared.slots import AllocatedSlot


@dataclass(frozen=True, slots=True)
class FailPayload:
    """Fail this attempt, which has lost its slot, and call ``payload_ended`` when it has ended."""

    attempt_id: ExecutionAttemptID
    cause: str


class _State(Enum):
    ALIVE = "alive"
    RELEASING = "releasing"
    RELEASED = "released"


class LogicalSlot:
    """A subtask's share of a slot: holds one attempt at a time, and is returned once. The attempt's
    side returns the share with :meth:`release_slot`; the slot's owner takes the share away with
    :meth:`release`.  Both fail an attempt that is still in the slot."""

    __slots__ = ("_is_given_back", "_payload", "_payload_has_ended", "_state", "slot", "vertex")

    def __init__(self, vertex: ExecutionVertexID, slot: AllocatedSlot) -> None:
        self.vertex = vertex
        self.slot = slot
        """The physical slot, which other subtasks may share."""
        self._state = _State.ALIVE
        self._payload: ExecutionAttemptID | None = None
        self._payload_has_ended = True
        self._is_given_back = False
        """Whether ``release_slot`` was called; the owner takes the share back when the attempt has
        ended."""

    @property
    def payload(self) -> ExecutionAttemptID | None:
        """The attempt in the slot, running or ended; None if there is none."""
        return self._payload

    @property
    def is_released(self) -> bool:
        """Whether the attempt has ended and the owner has taken the share back."""
        return self._state is _State.RELEASED

    @property
    def wants_to_return(self) -> bool:
        """Whether the owner can take the share back: it was returned and no attempt runs in it."""
        return self._state is _State.RELEASING and self._is_given_back and self._payload_has_ended

    def try_assign_payload(self, attempt_id: ExecutionAttemptID) -> bool:
        """Put an attempt into the slot.
        Returns False if there was an attempt already, or the slot is not alive (SP-19)."""
        if self._payload is not None or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = attempt_id, False
        return True

    def replace_payload(self, before: ExecutionAttemptID, after: ExecutionAttemptID) -> bool:
        """Let another attempt of the subtask continue in the slot.
        Returns False if *before* is not in the slot, or the slot is not alive."""
        if self._payload != before or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = after, False
        return True

    def release(self, cause: str) -> list[FailPayload]:
        """Take the share away, because the owner has lost the slot.  Returns the attempt to fail,
        if any. The share is not returned to the owner afterwards (SP-19)."""
        return self._begin_release(cause)

    def release_slot(self, cause: str) -> list[FailPayload]:
        """Return the share to its owner; see :attr:`wants_to_return`.  A second call changes
        nothing."""
        if self._state is not _State.RELEASED:
            self._is_given_back = True
        return self._begin_release(cause)

    def payload_ended(self) -> None:
        """Note that the attempt in the slot is in a terminal state."""
        self._payload_has_ended = True

    def taken_back(self) -> None:
        """Note that the owner has taken the share back."""
        self._state = _State.RELEASED

    def _begin_release(self, cause: str) -> list[FailPayload]:
        if self._state is not _State.ALIVE:
            return []
        self._state = _State.RELEASING
        if self._payload is None or self._payload_has_ended:
            return []
        return [FailPayload(self._payload, cause)]
