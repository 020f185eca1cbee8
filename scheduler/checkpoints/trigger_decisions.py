"""Decides when the next checkpoint is taken: users' requests in a queue, periodic checkpoints, and
final checkpoints for tasks whose input has ended."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration

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
    """Tells that the first request in the queue was periodic and was dropped, because the minimum
    pause after the last checkpoint is not over."""

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
        """Remove and return the next request; None if no request can begin now. TooEarly: the first
        request was periodic and came before the pause was over, and was dropped. Must not be called
        while a checkpoint is being triggered."""
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


CATCH_UP_PAUSE = 0.5
"""Seconds between attempts, while checkpoints are missing and none could be triggered."""


class PeriodicTrigger:
    """Decides when the next periodic checkpoint is due. Only the newest timer is valid, whose
    number is :attr:`number`. While checkpoints could not be taken (:attr:`are_missing`), the next
    one is due at once, and is tried again every :data:`CATCH_UP_PAUSE` seconds until tasks are
    triggered, because sinks wait for a checkpoint to commit."""

    def __init__(self, configuration: CheckpointConfiguration, random: Callable[[], float]) -> None:
        """Make a trigger that is not started. *random* returns numbers in [0, 1), which let jobs
        that start together take checkpoints at different times.
        """
        self._period = configuration.period
        self._pause = configuration.pause
        self._random = random
        self._last_over: float | None = None
        self.is_running = False
        self.are_missing = False
        """Whether checkpoints are missing because they could not be taken for a while."""
        self.number = 0
        """Number of the current timer."""

    def start(self) -> float | None:
        """Start periodic checkpoints.  Returns the delay of the first timer, in seconds. The delay
        is between the pause and the period (CP-10).  None if checkpoints are not periodic, or were
        started before."""
        if self._period is None or self.is_running:
            return None
        self.is_running = True
        return self._next(self._pause + self._random() * (self._period - self._pause))

    def catch_up(self, now: float) -> float | None:
        """Make the next checkpoint due as soon as the pause is over, because checkpoints could not
        be taken. Returns the delay, in seconds, of a timer that replaces the current timer; None if
        periodic checkpoints are stopped."""
        if not self.is_running:
            return None
        self.are_missing = True
        return self.put_off(now)

    def triggered(self) -> float | None:
        """Return to the usual period after a catch-up, because tasks were told to take a
        checkpoint. Returns the delay, in seconds, of a timer that replaces the current timer; None
        if the current timer stays."""
        if not self.are_missing or self._period is None:
            return None
        self.are_missing = False
        return self._next(self._period) if self.is_running else None

    def stop(self) -> None:
        self.is_running = self.are_missing = False
        self.number += 1

    def fired(self, number: int) -> float | None:
        """Return the delay in seconds of the next periodic timer, because timer *number* has fired.
        None if the timer was replaced before: then no checkpoint is due."""
        if number != self.number or not self.is_running or self._period is None:
            return None
        return self._next(min(self._period, CATCH_UP_PAUSE) if self.are_missing else self._period)

    def put_off(self, now: float) -> float:
        """Replace the current timer by one that fires when the pause is over. Returns the new
        timer's delay in seconds."""
        return self._next(self.remaining_pause(now))

    def checkpoint_over(self, now: float) -> None:
        """Begin the minimum pause before the next checkpoint, because a checkpoint is complete
        (CP-09)."""
        self._last_over = now

    def remaining_pause(self, now: float) -> float:
        """Return the remaining seconds of the pause after the last complete checkpoint; 0 if it is
        over."""
        if self._last_over is None:
            return 0.0
        return max(self._last_over + self._pause - now, 0.0)

    def _next(self, delay: float) -> float:
        self.number += 1
        return delay


FIRST_DELAY = 0.02
"""Seconds from the first waiting task to the checkpoint, which then covers later tasks as well."""
NEXT_DELAY = 0.5
"""Seconds between checks whether a suitable checkpoint is in progress.
The earlier checkpoint may have failed, or could not begin because other tasks were not running."""


class FinalCheckpoints:
    """Tracks the tasks that wait for a final checkpoint: a checkpoint after which a task whose
    input has ended can end. Decides when to take one, so that no task waits for the next periodic
    checkpoint, or forever."""

    def __init__(self) -> None:
        self._waiting: dict[ExecutionAttemptID, int] = {}
        """Attempt -> id of the latest checkpoint that does not cover the attempt's end."""
        self.number = 0
        """Number of the current timer."""
        self._has_timer = False

    def add(self, attempt_id: ExecutionAttemptID, after: int) -> bool:
        """Add an attempt that waits for a checkpoint with an id above *after*. Returns True if the
        caller must start a timer with the current :attr:`number`, because none is running."""
        self._waiting[attempt_id] = after
        return self._start_timer()

    def _start_timer(self) -> bool:
        if self._has_timer:
            return False
        self._has_timer = True
        self.number += 1
        return True

    def fired(self, number: int) -> bool:
        """Return whether a final checkpoint may be due, because timer *number* has fired and tasks
        still wait. If True, the caller must start the next timer, with the new :attr:`number`. A
        timer that was replaced by a later one is ignored."""
        if number != self.number or not self._has_timer:
            return False
        self._has_timer = False
        return bool(self._waiting) and self._start_timer()

    def completed(self, checkpoint_id: int) -> None:
        """Forget the tasks that have waited for this checkpoint, because they can end now."""
        self._waiting = {a: after for a, after in self._waiting.items() if after >= checkpoint_id}

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        for attempt_id in attempts:
            self._waiting.pop(attempt_id, None)

    def are_missing(self, pending: Collection[int]) -> bool:
        """Return whether a task waits for a checkpoint that has not begun: none of the *pending*
        checkpoints (ids of those in progress) is late enough for the task."""
        latest = max(pending, default=0)
        return any(after >= latest for after in self._waiting.values())
