"""Applies the transitions of a job until none is left: the loop in which a JobMaster's decisions
are made. An event is the first transition.  Each transition is applied by the decision objects that
it is wired to.  They return further transitions, and actions for the JobMaster.  The loop ends when
no transition is left.  (The model is dask's worker state machine.)

Decision objects do not know the loop.  ``docs/design/0029-decisions-as-a-transition-loop.md`` says
what is a transition, and what is a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.shared.transition import Phase, Transition

Step = Transition | JobSchedulerAction
Steps = Sequence[Step]
"""Steps that follow from a transition, in this order."""

T = TypeVar("T", bound=Transition)


@dataclass(frozen=True, slots=True)
class Applied:
    """A line of the transcript: an applied transition, and the event and change that caused it."""

    now: float
    event: str
    """Class of the event that started the run."""
    depth: int
    """0 for the event itself, else the depth of its origin plus one."""
    transition: Transition | str
    """Only the text, if the event is over and the transition held much data."""

    def __str__(self) -> str:
        return f"{self.now:.3f} s: {self.event}: {'  ' * self.depth}{self.transition}"


class TransitionLoop:
    """Applies transitions until none is left.
    The last *kept* transitions form the job's transcript: which change, caused by which event and
    which earlier change."""

    def __init__(
        self, subject: str, carry_out: Callable[[JobSchedulerAction], None], kept: int = 200
    ) -> None:
        """Make a loop for *subject*, a text for errors. *carry_out* receives the actions, in the
        order of the decisions. *kept*: number of transitions in the transcript."""
        self._subject = subject
        self._carry_out = carry_out
        self._handlers: dict[type[Any], tuple[Callable[[Any, float], Steps], ...]] = {}
        self._waiting: tuple[deque[tuple[int, Transition]], ...] = tuple(deque() for _ in Phase)
        self._transcript: deque[Applied] = deque(maxlen=kept)
        self._is_running = False

    def wire(self, kind: type[T], *handlers: Callable[[T, float], Steps]) -> None:
        """Register the handlers that apply transitions of this kind, in this order.
        Consequences are applied after the last handler."""
        self._handlers[kind] = handlers

    @property
    def transcript(self) -> tuple[Applied, ...]:
        """The last applied transitions, oldest first."""
        return tuple(self._transcript)

    def story(self) -> str:
        """Return the transcript as text, one line per transition."""
        return "\n".join(f"  {applied}" for applied in self._transcript)

    def run(self, event: Transition, now: float) -> None:
        """Apply *event*, and all transitions that follow from it.

        Raises:
            IllegalTransitionError: a decision is not possible in the current state; the error
                contains the history and the transcript.
        """
        name = type(event).__name__
        if self._is_running:
            raise self._illegal(f"work on {name} within another event")
        self._is_running = True
        try:
            applied = self._run(name, now, event)
        except IllegalTransitionError as error:
            raise self._illegal(f"work on {name}: {error}") from error
        finally:
            self._is_running = False
            for waiting in self._waiting:
                waiting.clear()
        self._forget_much(applied)

    def _run(self, name: str, now: float, event: Transition) -> int:
        """Apply all transitions.  Returns how many were applied."""
        changes: deque[tuple[int, Step]] = deque([(0, event)])
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
                    # The transition waits for its phase; until then its depth is negative.
                    later[transition.phase].append((~depth, transition))
                    continue
                depth = depth if depth >= 0 else ~depth
                self._transcript.append(Applied(now, name, depth, transition))
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
        """Replace transitions that hold much data by their texts in the transcript, among the
        *last* transitions."""
        transcript = self._transcript
        for index in range(max(0, len(transcript) - last), len(transcript)):
            transition = transcript[index].transition
            if isinstance(transition, Transition) and transition.is_large:
                transcript[index] = replace(transcript[index], transition=str(transition))

    def _illegal(self, wanted: str) -> IllegalTransitionError:
        return IllegalTransitionError(
            f"{self._subject} cannot {wanted}\nIts transitions:\n{self.story()}"
        )
