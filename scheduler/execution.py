"""One attempt to execute a subtask."""

from __future__ import annotations

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.slots import AllocatedSlot
from flinkray.scheduler.states import ExecutionState
from flinkray.scheduler.story import Story

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
    """States with their times, the slot, and the cause of a failure.

    Times are monotonic seconds.
    """

    def __init__(self, attempt_id: ExecutionAttemptID, task_name: str, now: float) -> None:
        self.attempt_id = attempt_id
        self.task_name = task_name
        self.state = ExecutionState.CREATED
        self.entered = {ExecutionState.CREATED: now}
        """When each state was entered."""
        self.slot: AllocatedSlot | None = None
        self.failure: Failure | None = None
        self.executor_id: str | None = None
        self.executor_actor_id: str | None = None
        self.executor_pid: int | None = None
        self.story = Story(f"attempt {attempt_id} of {task_name}")

    @property
    def location(self) -> str | None:
        return None if self.slot is None else location_text(self.slot)

    def schedule(self, now: float) -> None:
        """It waits for its slot."""
        self._enter(ExecutionState.SCHEDULED, now)

    def deploy(self, slot: AllocatedSlot, now: float) -> None:
        """It is sent to its slot; raises IllegalTransitionError when that was done before
        (EX-01)."""
        self._enter(ExecutionState.DEPLOYING, now, f"in {location_text(slot)}")
        self.slot = slot

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
            raise self.story.illegal(f"go from {self.state.name} to {state.name}")
        text = f"{self.state.name} -> {state.name}"
        self.story.add(now, f"{text}: {cause}" if cause else text)
        self.state = state
        self.entered[state] = now
