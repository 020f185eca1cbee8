"""The share of a physical slot that one subtask has."""

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
    """A subtask's share of a physical slot: holds one attempt at a time, and is given back once.
    The attempt's side gives the share back with :meth:`release_slot`; the owner of the physical
    slot takes the share away with :meth:`release`. Both fail an attempt that is still in the
    slot."""

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
        """Whether the share is at its end: the attempt has ended, and the owner of the physical
        slot has taken the share back."""
        return self._state is _State.RELEASED

    @property
    def wants_to_return(self) -> bool:
        """Whether the owner of the physical slot can take the share back: it was given back, and no
        attempt runs in it."""
        return self._state is _State.RELEASING and self._is_given_back and self._payload_has_ended

    def try_assign_payload(self, attempt_id: ExecutionAttemptID) -> bool:
        """Put an attempt into the slot. Returns False if there was an attempt already, or the share
        is being released or was lost (SP-19)."""
        if self._payload is not None or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = attempt_id, False
        return True

    def replace_payload(self, before: ExecutionAttemptID, after: ExecutionAttemptID) -> bool:
        """Let the attempt *after* continue in the slot in place of *before*, another attempt of the
        subtask. Returns False if *before* is not in the slot, or the share is being released or was
        lost."""
        if self._payload != before or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = after, False
        return True

    def release(self, cause: str) -> list[FailPayload]:
        """Take the share away from its attempt, because the owner has lost the physical slot.
        Returns the attempt to fail, if any. The share is not given back to the owner afterwards
        (SP-19)."""
        return self._begin_release(cause)

    def release_slot(self, cause: str) -> list[FailPayload]:
        """Give the share back to the owner of the physical slot, which can take it when
        :attr:`wants_to_return` is True. Returns the attempt to fail, if one is still in the slot. A
        second call changes nothing."""
        if self._state is not _State.RELEASED:
            self._is_given_back = True
        return self._begin_release(cause)

    def payload_ended(self) -> None:
        """Note that the attempt in the slot has ended, so that the share can be taken back."""
        self._payload_has_ended = True

    def taken_back(self) -> None:
        """Mark the share as released, because the owner of the physical slot has taken it back."""
        self._state = _State.RELEASED

    def _begin_release(self, cause: str) -> list[FailPayload]:
        if self._state is not _State.ALIVE:
            return []
        self._state = _State.RELEASING
        if self._payload is None or self._payload_has_ended:
            return []
        return [FailPayload(self._payload, cause)]
