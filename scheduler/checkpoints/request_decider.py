"""Which requested checkpoint is taken next."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from flinkray.scheduler.checkpoints.properties import CheckpointProperties

MOST_QUEUED = 1000
"""Requests; as Flink."""


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Somebody wants a checkpoint or a savepoint."""

    number: int
    """Grows from request to request."""
    properties: CheckpointProperties
    request_id: int | None = None
    """Of a user's: to tell what became of it.  None: it is periodic."""
    directory: str | None = None
    """Of a savepoint; None: it is a checkpoint."""

    @property
    def is_periodic(self) -> bool:
        return self.request_id is None

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """The lowest goes first: users' before periodic ones, savepoints before checkpoints."""
        properties = self.properties
        return (
            self.is_periodic,
            not properties.is_savepoint,
            not properties.is_forced,
            self.number,
        )


@dataclass(frozen=True, slots=True)
class TooEarly:
    """The first in the queue was periodic, and the pause before it is not over: it is dropped."""

    request: CheckpointRequest


class CheckpointRequestDecider:
    """The requests that wait, and which of them is next (CP-16, CP-17)."""

    def __init__(self, max_concurrent: int, most_queued: int = MOST_QUEUED) -> None:
        self._max_concurrent = max_concurrent
        self._most_queued = most_queued
        self._queued: list[CheckpointRequest] = []

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, request: CheckpointRequest) -> CheckpointRequest | None:
        """It waits; the one that there is no room for, which has the lowest rank.

        Of periodic ones a single one waits: what was put off is not made up for.
        """
        if request.is_periodic and self._queued and self._queued[-1].is_periodic:
            return request
        insort(self._queued, request, key=lambda each: each.rank)
        return self._queued.pop() if len(self._queued) > self._most_queued else None

    def next(
        self, *, number_of_pending: int, is_pause_over: bool
    ) -> CheckpointRequest | TooEarly | None:
        """The one to be begun, taken out of the queue; None: none now.  Not to be asked while one
        is being triggered."""
        if not self._queued:
            return None
        first = self._queued[0]
        if not first.properties.is_forced:
            if number_of_pending >= self._max_concurrent:
                return None
            if first.is_periodic and not is_pause_over:
                return TooEarly(self._queued.pop(0))
        return self._queued.pop(0)

    def drain(self) -> list[CheckpointRequest]:
        """All that wait; none does any more."""
        queued, self._queued = self._queued, []
        return queued
