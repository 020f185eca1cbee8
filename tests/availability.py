"""Whether a job was there when it had to be, by what somebody saw who asked for its status.

The rules are those by which Flink's own Jepsen tests judge a run.  While a fault is on, and for a
time of grace afterwards, a job may be gone.  Then it has to run, until it is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flinkray.scheduler.shared.states import JobStatus

GRACE = 180.0
"""Seconds from the end of the last fault, or from the submission, until the job has to run."""
CANCELLATION_GRACE = 10.0
"""Seconds within which it has to end when its cancellation was acknowledged."""
POLL_EVERY = 5.0
"""Seconds between two questions."""
HEALTHY = 5
"""So many answers in a row tell that it runs well."""
PATIENCE = GRACE + 4 * HEALTHY * POLL_EVERY
"""Seconds after which whoever waits for that need not wait any more: it has come too late."""

CLUSTER_IS_NOT_RUNNING = "Cluster is not running."
JOB_IS_NOT_RUNNING = "Job is not running."
RUNNING_AFTER_CANCELLATION = "Job is running after cancellation."
NEVER_RUNNING = "Job has never been seen running."
NOT_SETTLED = "Job was not seen running long enough after the last fault."


@dataclass(frozen=True)
class FaultBegan:
    """Each ends once, by a :class:`FaultEnded` of the same name."""

    at: float
    name: str


@dataclass(frozen=True)
class FaultEnded:
    at: float
    name: str


@dataclass(frozen=True)
class Seen:
    at: float
    """When it was answered, or given up."""
    status: JobStatus | None
    """None: there was no answer."""


@dataclass(frozen=True)
class Cancelled:
    """The job's cancellation was acknowledged."""

    at: float


Event = FaultBegan | FaultEnded | Seen | Cancelled


@dataclass(frozen=True)
class Violation:
    at: float
    what: str


def is_healthy(history: Sequence[Event], since: int) -> bool:
    """Whether the last answers tell so.  Those before the place *since* do not count."""
    last = history[since:][-HEALTHY:]
    are_all = all(isinstance(it, Seen) and it.status is JobStatus.RUNNING for it in last)
    return len(last) == HEALTHY and are_all


def violations(history: Iterable[Event]) -> list[Violation]:
    """What must not have been, in the order of the *history*, which begins with the submission at
    0 seconds."""
    found: list[Violation] = []
    active: dict[str, None] = {}
    since = at = 0.0
    in_a_row = 0
    was_healthy = is_settled = False
    cancelled: float | None = None
    for event in history:
        at = event.at
        if isinstance(event, FaultBegan):
            active[event.name] = None
            is_settled, in_a_row = False, 0
        elif isinstance(event, FaultEnded):
            del active[event.name]
            since = at
        elif isinstance(event, Cancelled):
            cancelled = at
        elif cancelled is not None:
            is_over = event.status is not None and event.status.is_terminal
            if event.status is not None and not is_over and at > cancelled + CANCELLATION_GRACE:
                found.append(Violation(at, RUNNING_AFTER_CANCELLATION))
        elif active:
            in_a_row = 0
        else:
            in_a_row = in_a_row + 1 if event.status is JobStatus.RUNNING else 0
            is_settled = is_settled or in_a_row >= HEALTHY
            was_healthy = was_healthy or is_settled
            if at > since + GRACE and event.status is None:
                found.append(Violation(at, CLUSTER_IS_NOT_RUNNING))
            elif at > since + GRACE and event.status is not JobStatus.RUNNING:
                found.append(Violation(at, JOB_IS_NOT_RUNNING))
    if not was_healthy:
        found.append(Violation(at, NEVER_RUNNING))
    elif not is_settled:
        found.append(Violation(at, NOT_SETTLED))
    return found
