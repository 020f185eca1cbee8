"""The loop in which the decisions of a JobMaster are taken.

An event enters as one or a few transitions.  Each transition is applied by the decision objects
that it is wired to, and these answer with what follows from it: further transitions, and actions
for the JobMaster.  The loop goes on until nothing follows any more.  (dask's worker state machine
is the model.)

Decision objects know the loop as little as each other: what one wants of another is a transition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction


class Phase(IntEnum):
    """Transitions of an earlier phase are applied before any of a later one.

    Within CHANGES, what follows from a transition is applied before what came after it; within the
    other phases, what came first.
    """

    CHANGES = 0
    """What has happened, and all that follows from it at once."""
    FAILOVER = 1
    """What has failed by the event is decided upon: it is one failure, however much it is."""
    RESTART = 2
    """Restarts that are due by now are carried out, and what waits on is asked for again."""
    END = 3
    """The job ends if nothing of it runs any more."""


class Transition:
    """A change that one or more decision objects apply.  Subclasses are frozen dataclasses."""

    __slots__ = ()
    phase: ClassVar[Phase] = Phase.CHANGES
    holds_much: ClassVar[bool] = False
    """Whether no more than its text is kept, however few parts it has."""

    def __str__(self) -> str:
        values = ", ".join(_brief(getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({values})"


_MOST_OF_A_VALUE = 120
"""Characters of one value in a line of a transcript."""

_MUCH = 100
"""Parts of a value from which on a transcript keeps no more than the text of the transition: what
ten thousand tasks reported at once would stay in memory until 200 further transitions."""

Step = Transition | JobSchedulerAction
Steps = Sequence[Step]
"""What follows from a transition, in this order."""

T = TypeVar("T", bound=Transition)


@dataclass(frozen=True, slots=True)
class Applied:
    """A line of the transcript: the transition, and what it follows from."""

    now: float
    event: str
    """The event that it began with."""
    depth: int
    """0: of the event itself; else one more than that of the transition that it follows from."""
    transition: Transition | str
    """Only its text when its event is over and it held much."""

    def __str__(self) -> str:
        return f"{self.now:.3f} s: {self.event}: {'  ' * self.depth}{self.transition}"


class TransitionLoop:
    """Applies transitions until none is left.

    It keeps the last *kept* of them as the job's transcript: what was changed, by which event, and
    because of which other change.
    """

    def __init__(
        self, subject: str, carry_out: Callable[[JobSchedulerAction], None], kept: int = 200
    ) -> None:
        """*carry_out* is given the actions, in the order of the decisions."""
        self._subject = subject
        self._carry_out = carry_out
        self._handlers: dict[type[Any], tuple[Callable[[Any, float], Steps], ...]] = {}
        self._waiting: tuple[deque[tuple[int, Transition]], ...] = tuple(deque() for _ in Phase)
        self._transcript: deque[Applied] = deque(maxlen=kept)
        self._is_running = False

    def wire(self, kind: type[T], *handlers: Callable[[T, float], Steps]) -> None:
        """From now on these apply transitions of that kind, in this order; what follows from any of
        them is applied after the last of them."""
        self._handlers[kind] = handlers

    @property
    def transcript(self) -> tuple[Applied, ...]:
        """The transitions that were applied last, oldest first."""
        return tuple(self._transcript)

    def story(self) -> str:
        """The same as text, a line for each."""
        return "\n".join(f"  {applied}" for applied in self._transcript)

    def run(self, event: str, now: float, steps: Iterable[Step]) -> None:
        """Work on one event.

        Raises:
            IllegalTransitionError: something cannot do what was decided for it; the error carries
                its story and the transcript.
        """
        if self._is_running:
            raise self._illegal(f"work on {event} within another event")
        self._is_running = True
        try:
            applied = self._run(event, now, steps)
        except IllegalTransitionError as error:
            raise self._illegal(f"work on {event}: {error}") from error
        finally:
            self._is_running = False
            for waiting in self._waiting:
                waiting.clear()
        self._forget_much(applied)

    def _run(self, event: str, now: float, steps: Iterable[Step]) -> int:
        """How many transitions were applied."""
        changes = deque((0, step) for step in steps)
        applied = 0
        later = self._waiting
        handlers_of = self._handlers
        while True:
            while changes:
                depth, step = changes.popleft()
                handlers = handlers_of.get(type(step))
                if handlers is None:
                    self._carry_out(step)  # type: ignore[arg-type]
                    continue
                transition: Transition = step  # type: ignore[assignment]
                if transition.phase is not Phase.CHANGES and depth >= 0:
                    # it waits for its phase, in which its depth is known as a negative number
                    later[transition.phase].append((~depth, transition))
                    continue
                depth = depth if depth >= 0 else ~depth
                self._transcript.append(Applied(now, event, depth, transition))
                applied += 1
                if len(handlers) == 1:
                    follows = handlers[0](transition, now)
                else:
                    follows = [s for handler in handlers for s in handler(transition, now)]
                if follows:
                    changes.extendleft((depth + 1, s) for s in reversed(follows))
            waiting = next((of_phase for of_phase in later if of_phase), None)
            if waiting is None:
                return applied
            changes.append(waiting.popleft())

    def _forget_much(self, last: int) -> None:
        """Keep only the texts of those of the *last* transitions that hold much."""
        transcript = self._transcript
        for index in range(max(0, len(transcript) - last), len(transcript)):
            transition = transcript[index].transition
            if isinstance(transition, Transition) and _holds_much(transition):
                transcript[index] = replace(transcript[index], transition=str(transition))

    def _illegal(self, wanted: str) -> IllegalTransitionError:
        return IllegalTransitionError(
            f"{self._subject} cannot {wanted}\nIts transitions:\n{self.story()}"
        )


def _holds_much(transition: Transition) -> bool:
    if transition.holds_much:
        return True
    values = (getattr(transition, f.name) for f in fields(transition))  # type: ignore[arg-type]
    return any(isinstance(value, Sized) and len(value) >= _MUCH for value in values)


def _brief(value: object) -> str:
    """A value in a line of a transcript."""
    if isinstance(value, tuple):
        shown = ", ".join(_brief(one) for one in value[:3])
        return f"[{shown}]" if len(value) <= 3 else f"[{shown} and {len(value) - 3} more]"
    text = str(value)
    return text if len(text) <= _MOST_OF_A_VALUE else f"{text[:_MOST_OF_A_VALUE]}…"
