"""One attempt to execute a subtask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.story import Story

if TYPE_CHECKING:
    from flinkray.scheduler.execution.execution_graph import ExecutionVertex

_LEGAL: dict[ExecutionState, tuple[ExecutionState, ...]] = {
    ExecutionState.CREATED: (
        ExecutionState.SCHEDULED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.SCHEDULED: (
        ExecutionState.DEPLOYING,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.DEPLOYING: (
        ExecutionState.INITIALIZING,
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.INITIALIZING: (
        ExecutionState.RUNNING,
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.RUNNING: (
        ExecutionState.FINISHED,
        ExecutionState.CANCELING,
        ExecutionState.FAILED,
    ),
    ExecutionState.CANCELING: (ExecutionState.CANCELED, ExecutionState.FAILED),
    ExecutionState.FINISHED: (),
    ExecutionState.CANCELED: (),
    ExecutionState.FAILED: (),
}


def location_text(slot: AllocatedSlot) -> str:
    """``<TaskExecutor> bundle <i> on <node ip>``."""
    location = slot.location
    return f"{location.resource_id} bundle {location.bundle_index} on {location.node_ip}"


class Execution:
    """States with their times and causes, the slot, and the cause of a failure.

    Times are monotonic seconds.  There may be tens of thousands of these: what can be derived is
    not kept.
    """

    __slots__ = (
        "_created_at",
        "_transitions",
        "attempt_number",
        "executor_actor_id",
        "executor_id",
        "executor_pid",
        "failure",
        "io_metrics",
        "restored_state",
        "slot",
        "state",
        "vertex",
    )

    def __init__(self, vertex: ExecutionVertex, attempt_number: int, now: float) -> None:
        self.vertex = vertex
        self.attempt_number = attempt_number
        self.state = ExecutionState.CREATED
        self._created_at = now
        self._transitions: tuple[tuple[ExecutionState, float, str], ...] = ()
        self.slot: AllocatedSlot | None = None
        self.failure: Failure | None = None
        self.restored_state: bytes | None = None
        """What the task is to be restored from; dropped once it is deployed (EX-07)."""
        self.io_metrics: IOMetrics | None = None
        """Since it has ended."""
        self.executor_id: str | None = None
        self.executor_actor_id: str | None = None
        self.executor_pid: int | None = None

    def __str__(self) -> str:
        return f"{self.task_name} #{self.attempt_number}"

    @property
    def attempt_id(self) -> ExecutionAttemptID:
        return ExecutionAttemptID(
            self.vertex.job_vertex.graph_id, self.vertex.vertex_id, self.attempt_number
        )

    @property
    def task_name(self) -> str:
        """``<vertex> (<subtask, from 1>/<parallelism>)``."""
        return self.vertex.task_name

    @property
    def entered(self) -> dict[ExecutionState, float]:
        """When each state was entered."""
        later = {state: at for state, at, _ in self._transitions}
        return {ExecutionState.CREATED: self._created_at, **later}

    def entered_at(self, state: ExecutionState) -> float | None:
        """When a state was entered, if it was."""
        return self.entered.get(state)

    @property
    def location(self) -> str | None:
        return None if self.slot is None else location_text(self.slot)

    @property
    def story(self) -> Story:
        """What has happened to it and why, a line per transition."""
        story = Story(f"attempt {self.attempt_id} of {self.task_name}")
        before = ExecutionState.CREATED
        for state, at, cause in self._transitions:
            text = f"{before.name} -> {state.name}"
            story.add(at, f"{text}: {cause}" if cause else text)
            before = state
        return story

    def illegal(self, wanted: str) -> IllegalTransitionError:
        """The error for what this attempt cannot do; it carries the story."""
        return self.story.illegal(wanted)

    def schedule(self, now: float) -> bool:
        """It waits for its slot; False: it was canceled before, which is nobody's fault (EX-05)."""
        if self.state is ExecutionState.CANCELED:
            return False
        self._enter(ExecutionState.SCHEDULED, now)
        return True

    def deploy(self, slot: AllocatedSlot, now: float) -> None:
        """It is sent to its slot; raises IllegalTransitionError when that was done before
        (EX-01)."""
        self._enter(ExecutionState.DEPLOYING, now, f"in {location_text(slot)}")
        self.slot = slot

    def initialize(self, now: float) -> None:
        """Its TaskExecutor restores its state."""
        self._enter(ExecutionState.INITIALIZING, now)

    def run(self, now: float) -> None:
        """It runs."""
        self._enter(ExecutionState.RUNNING, now)

    def finish(self, now: float) -> None:
        """It is done."""
        self._enter(ExecutionState.FINISHED, now)

    def begin_cancel(self, now: float) -> bool:
        """Whether someone must be told to cancel it and will confirm.

        Before it is deployed there is nobody to tell, it is CANCELED at once (EX-03); a second
        time, and when it has ended, nothing changes (EX-04).
        """
        if self.state.is_terminal or self.state is ExecutionState.CANCELING:
            return False
        is_deployed = self.slot is not None
        self._enter(ExecutionState.CANCELING, now)
        if not is_deployed:
            self._enter(ExecutionState.CANCELED, now)
        return is_deployed

    def end(self, failure: Failure, now: float) -> bool:
        """It ended otherwise than by finishing; whether that is a failure.

        What is being cancelled ends as CANCELED, whatever ended it (EX-05); what has ended already
        stays as it is.
        """
        if self.state.is_terminal:
            return False
        if self.state is ExecutionState.CANCELING:
            self._enter(ExecutionState.CANCELED, now, failure.text)
            return False
        self.failure = failure
        self._enter(ExecutionState.FAILED, now, failure.text)
        return True

    def _enter(self, state: ExecutionState, now: float, cause: str = "") -> None:
        if state not in _LEGAL[self.state]:
            raise self.illegal(f"go from {self.state.name} to {state.name}")
        self._transitions = (*self._transitions, (state, now, cause))
        self.state = state
        if state.is_terminal:
            self.vertex.job_vertex.execution_ended(state)
