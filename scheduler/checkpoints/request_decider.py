"""Queues requests for checkpoints, and decides which request is next."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from flinkray.scheduler.checkpoints.properties import CheckpointProperties

MOST_QUEUED = 1000
"""Longest queue, in requests; as in Flink."""


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint or a savepoint."""

    number: int
    """Ascending number of the request."""
    properties: CheckpointProperties
    request_id: int | None = None
    """Id of a user's request, used for the answer; None for a periodic checkpoint."""
    directory: str | None = None
    """Target directory of a savepoint; None for a checkpoint."""

    @property
    def is_periodic(self) -> bool:
        return self.request_id is None

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Sort key; the request with the lowest rank goes first.
        Users' requests go before periodic ones, and savepoints before checkpoints."""
        properties = self.properties
        return (
            self.is_periodic,
            not properties.is_savepoint,
            not properties.is_forced,
            self.number,
        )


@dataclass(frozen=True, slots=True)
class TooEarly:
    """Says that the decider has dropped a periodic request, because the pause is not over. The
    request was the first in the queue."""

    request: CheckpointRequest


class CheckpointRequestDecider:
    """Queues requests for checkpoints, and decides which one is next (CP-16, CP-17)."""

    def __init__(self, max_concurrent: int, most_queued: int = MOST_QUEUED) -> None:
        self._max_concurrent = max_concurrent
        self._most_queued = most_queued
        self._queued: list[CheckpointRequest] = []

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, request: CheckpointRequest) -> CheckpointRequest | None:
        """Queue a request.  Returns the request that was dropped for it, or None. The queue drops
        the request with the lowest priority when it is full.  At most one periodic request waits:
        missed periodic checkpoints are not made up for."""
        if request.is_periodic and self._queued and self._queued[-1].is_periodic:
            return request
        insort(self._queued, request, key=lambda each: each.rank)
        return self._queued.pop() if len(self._queued) > self._most_queued else None

    def next(
        self, *, number_of_pending: int, is_pause_over: bool
    ) -> CheckpointRequest | TooEarly | None:
        """Take the next request out of the queue; None if no request can begin now.
        TooEarly means that a periodic request was dropped.  Do not call this while a checkpoint is
        being triggered."""
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
        """Empty the queue.  Returns all waiting requests."""
        queued, self._queued = self._queued, []
        return queued
