"""A JobScheduler with short names for its events."""

from __future__ import annotations

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    NoRestart,
    RestartStrategy,
)
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTask,
    JobEnded,
    JobSchedulerAction,
    JobStatusChanged,
)
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkFailure, SparkResult
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from tests.scheduler.builders import GRAPH, JOB, VERTEX, allocated_slot, only, spark_job

NO_RESTART = NoRestart()
RESULT = SparkResult("file:///result", 42, "{}")
FAILURE = SparkFailure("ValueError", "ValueError: no", "Traceback ...", is_user_error=True)


def executor(index: int, pid: int = 100) -> SparkExecutorInfo:
    return SparkExecutorInfo(index, str(index), f"actor{index}", "n0", pid + index, index)


def attempt(subtask: int, number: int = 0, vertex: JobVertexID = VERTEX) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, ExecutionVertexID(vertex, subtask), number)


def slots(number: int = 2, first: int = 0, in_group: str = "g") -> tuple[AllocatedSlot, ...]:
    return tuple(allocated_slot(first + i, i, in_group) for i in range(number))


class JobUnderTest:
    """``log`` has all actions so far; each event advances the time by a second."""

    def __init__(
        self, graph: JobGraph | None = None, strategy: RestartStrategy | None = None
    ) -> None:
        self.now = 0.0
        self.log: list[JobSchedulerAction] = []
        self.scheduler = JobScheduler(
            graph or spark_job(restart_strategy=strategy),
            "JobMaster/jobmaster",
            new_graph_id=lambda: GRAPH,
            default_restart_strategy=FixedDelayRestart(3, 1.0),
            epoch_offset=1_000_000.0,
            now=0.0,
        )

    def tell(self, event: str, *args: object) -> list[JobSchedulerAction]:
        """Call the event's method; its actions, but for changes of the status."""
        self.now += 1.0
        actions: list[JobSchedulerAction] = getattr(self.scheduler, event)(*args, self.now)
        self.log += actions
        return [action for action in actions if not isinstance(action, JobStatusChanged)]

    def start(self) -> JobUnderTest:
        self.tell("start")
        return self

    def deploy(self, number: int = 2) -> JobUnderTest:
        self.start().tell("slots_changed", slots(number))
        return self

    def run(self) -> JobUnderTest:
        """All executors are registered."""
        self.deploy().tell("coordinator_started", VERTEX, 0)
        self.tell("executors_changed", VERTEX, 0, (executor(0), executor(1)))
        return self

    def task(
        self, subtask: int, number: int, state: ExecutionState, failure: str | None = None
    ) -> list[JobSchedulerAction]:
        told = TaskExecutionState(JOB, attempt(subtask, number), state, failure)
        return self.tell("task_state_changed", told)

    def confirm_cancellations(self) -> list[JobSchedulerAction]:
        """Every TaskExecutor that was told to cancel a task reports that it did."""
        actions = []
        for asked in only(tuple(self.log), CancelTask):
            told = TaskExecutionState(JOB, asked.attempt_id, ExecutionState.CANCELED)
            actions += self.tell("task_state_changed", told)
        return actions

    def states(self) -> list[str]:
        executions = self.scheduler.details().vertices[0].executions
        return [f"{e.state.name} {e.attempt_number}" for e in executions]

    @property
    def ended(self) -> JobEnded | None:
        found = only(self.log, JobEnded)
        assert len(found) <= 1
        return found[0] if found else None
