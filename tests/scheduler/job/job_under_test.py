"""A JobScheduler of Spark stages, with short names for what their drivers do."""

from __future__ import annotations

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID
from flinkray.scheduler.graph.job_graph import JobGraph, NoRestart, RestartStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorID,
    CoordinatorKind,
    SparkExecutors,
)
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkResult
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from tests.scheduler.builders import GRAPH, JOB, VERTEX, spark_job
from tests.scheduler.tasks_under_test import TasksUnderTest

NO_RESTART = NoRestart()
RESULT = SparkResult("file:///result", 42, "{}")
FAILURE = CoordinatorFailure("ValueError", "ValueError: no", "Traceback ...", is_user_error=True)


def executor(index: int, pid: int = 100) -> SparkExecutorInfo:
    return SparkExecutorInfo(index, str(index), f"actor{index}", "n0", pid + index, index)


def attempt(subtask: int, number: int = 0, vertex: JobVertexID = VERTEX) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, ExecutionVertexID(vertex, subtask), number)


def driver(number: int = 0, vertex: JobVertexID = VERTEX) -> CoordinatorID:
    return CoordinatorID(CoordinatorKind.SPARK_DRIVER, vertex, number)


class JobUnderTest(TasksUnderTest):
    """``log`` has all actions so far; each event advances the time by a second.

    The TaskExecutor of bundle 0 is ``te0-g``; what is given after ``worker_group`` was set to
    another name is on others.
    """

    def __init__(
        self, graph: JobGraph | None = None, strategy: RestartStrategy | None = None
    ) -> None:
        super().__init__(graph or spark_job(restart_strategy=strategy))

    def start(self) -> JobUnderTest:
        self.tell(t.StartJob())
        return self

    def deploy(self) -> JobUnderTest:
        self.start().give()
        return self

    def run(self) -> JobUnderTest:
        """All executors are registered."""
        self.deploy().started()
        self.executors(executor(0), executor(1))
        return self

    # drivers

    def started(self, number: int = 0, vertex: JobVertexID = VERTEX) -> list[JobSchedulerAction]:
        return self.tell(t.CoordinatorStarted(driver(number, vertex)))

    def stopped(self, number: int = 0, vertex: JobVertexID = VERTEX) -> list[JobSchedulerAction]:
        return self.tell(t.CoordinatorGone(driver(number, vertex)))

    def finish_stage(self, number: int = 0) -> list[JobSchedulerAction]:
        """The driver's function returns, and it stops; the last one's actions."""
        self.started(number)
        self.says(RESULT, number)
        return self.stopped(number)

    def lost(self, cause: str = "killed", number: int = 0) -> list[JobSchedulerAction]:
        return self.tell(t.CoordinatorGone(driver(number), cause))

    def says(
        self, event: CoordinatorEvent, number: int = 0, vertex: JobVertexID = VERTEX
    ) -> list[JobSchedulerAction]:
        return self.tell(t.CoordinatorTold(driver(number, vertex), event))

    def executors(self, *registered: SparkExecutorInfo) -> list[JobSchedulerAction]:
        return self.says(SparkExecutors(registered))

    # tasks

    def task(
        self, subtask: int, number: int, state: ExecutionState, failure: str | None = None
    ) -> list[JobSchedulerAction]:
        if state.is_terminal:
            self.tasks.pop(attempt(subtask, number), None)
        told = TaskExecutionState(JOB, attempt(subtask, number), state, failure)
        return self.tell(t.TasksReported((told,)))

    def delay_over(self) -> list[JobSchedulerAction]:
        """The last delay of a restart."""
        return self.tell(self.last_restart())

    def stage_states(self) -> list[str]:
        executions = self.scheduler.details().vertices[0].executions
        return [f"{e.state.name} {e.attempt_number}" for e in executions]
