"""Defines the base classes of a job's events and transitions, and the timer of an event."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar


class Phase(IntEnum):
    """Phase of a transition.  Transitions of earlier phases are applied first.
    Within CHANGES, the consequences of a transition are applied before transitions that came after
    it.  Within the other phases, transitions are applied in the order in which they came."""

    CHANGES = 0
    """Changes that have happened, with their immediate consequences."""
    FAILOVER = 1
    """Decision about all failures of the event, which count as one failure."""
    RESTART = 2
    """Restarts and scaling that are due, and new requests for slots that are still missing."""
    END = 3
    """End of the job, if nothing of it runs any more."""


_MOST_OF_A_VALUE = 120
"""Largest number of characters of one value in a line of the transcript."""

_MUCH = 100
"""Number of parts of a value from which on the transcript keeps only the transition's text.
Otherwise reports of ten thousand tasks would stay in memory for 200 further transitions."""


class Transition:
    """Base class of all changes that decision objects apply.  Subclasses are frozen dataclasses."""

    __slots__ = ()
    phase: ClassVar[Phase] = Phase.CHANGES
    holds_much: ClassVar[bool] = False
    """Whether the transcript keeps only the text of the transition, even if its values are
    small."""

    def __str__(self) -> str:
        values = ", ".join(_brief(getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({values})"

    @property
    def is_large(self) -> bool:
        """Whether the transition holds much data, so that the transcript keeps only its text."""
        if self.holds_much:
            return True
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return any(isinstance(value, Sized) and len(value) >= _MUCH for value in values)


class JobEvent(Transition):
    """Base class of the events that the JobMaster passes to the JobScheduler."""

    __slots__ = ()
    counts_after_end: ClassVar[bool] = False
    """Whether the event still has consequences when the job has ended."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Pass *event* to the JobScheduler after *delay* seconds."""

    event: JobEvent
    delay: float
    is_deadline: bool = False
    """Whether the job gives up waiting when the timer fires. The JobMaster first handles the
    messages that have arrived by then."""


def _brief(value: object) -> str:
    if isinstance(value, tuple):
        shown = ", ".join(_brief(one) for one in value[:3])
        return f"[{shown}]" if len(value) <= 3 else f"[{shown} and {len(value) - 3} more]"
    text = str(value)
    return text if len(text) <= _MOST_OF_A_VALUE else f"{text[:_MOST_OF_A_VALUE]}…"
