"""The share of a slot that one subtask has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.shared.slots import AllocatedSlot


@dataclass(frozen=True, slots=True)
class FailPayload:
    """The attempt has lost its slot: fail it, and say ``payload_ended`` when it has ended."""

    attempt_id: ExecutionAttemptID
    cause: str


class _State(Enum):
    ALIVE = "alive"
    RELEASING = "releasing"
    RELEASED = "released"


class LogicalSlot:
    """Holds one attempt, once (or one after another of the same subtask), and is given back once.

    Who runs the attempt gives the slot back with :meth:`release_slot`; who owns the slot takes it
    away with :meth:`release`.  Both fail the attempt that is still in it.
    """

    __slots__ = ("_is_given_back", "_payload", "_payload_has_ended", "_state", "slot", "vertex")

    def __init__(self, vertex: ExecutionVertexID, slot: AllocatedSlot) -> None:
        self.vertex = vertex
        self.slot = slot
        """The physical slot, which others may share."""
        self._state = _State.ALIVE
        self._payload: ExecutionAttemptID | None = None
        self._payload_has_ended = True
        self._is_given_back = False
        """Whether ``release_slot`` was called: to be taken back when the payload has ended."""

    @property
    def payload(self) -> ExecutionAttemptID | None:
        """The attempt in the slot, running or ended."""
        return self._payload

    @property
    def is_released(self) -> bool:
        """Whether its attempt has ended and its owner has taken it back."""
        return self._state is _State.RELEASED

    @property
    def wants_to_return(self) -> bool:
        """Whether the owner may take it back now: it was given back and nothing is in it."""
        return self._state is _State.RELEASING and self._is_given_back and self._payload_has_ended

    def try_assign_payload(self, attempt_id: ExecutionAttemptID) -> bool:
        """Put an attempt in; False: there was one already, or the slot is not alive (SP-19)."""
        if self._payload is not None or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = attempt_id, False
        return True

    def replace_payload(self, before: ExecutionAttemptID, after: ExecutionAttemptID) -> bool:
        """Another attempt of the subtask goes on in the slot; False: *before* is not in it, or it
        is not alive."""
        if self._payload != before or self._state is not _State.ALIVE:
            return False
        self._payload, self._payload_has_ended = after, False
        return True

    def release(self, cause: str) -> list[FailPayload]:
        """The owner takes the slot away; it is not handed back to him (SP-19)."""
        return self._begin_release(cause)

    def release_slot(self, cause: str) -> list[FailPayload]:
        """The slot is given back; see :attr:`wants_to_return`.  Again: nothing."""
        if self._state is not _State.RELEASED:
            self._is_given_back = True
        return self._begin_release(cause)

    def payload_ended(self) -> None:
        """The attempt is in a terminal state."""
        self._payload_has_ended = True

    def taken_back(self) -> None:
        """The owner has it again."""
        self._state = _State.RELEASED

    def _begin_release(self, cause: str) -> list[FailPayload]:
        if self._state is not _State.ALIVE:
            return []
        self._state = _State.RELEASING
        if self._payload is None or self._payload_has_ended:
            return []
        return [FailPayload(self._payload, cause)]
