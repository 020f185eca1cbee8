"""The tasks that a TaskExecutor runs in its own process, each with the runner of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flinkray.actors.gateways.task_reports import TaskReport, not_ready
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask, TasksOfKind
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobMasterId,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskDeployments, TaskExecutionState

_NO_PART = "a task of its kind takes no part in checkpoints"


@dataclass(slots=True)
class _RunningTask:
    task: RunnerTask
    run: asyncio.Task[FlinkRayError | None]
    is_cancelling: bool = False
    failure: str | None = None
    """Why the task is cancelled, if it must end as failed. None for an ordinary cancellation."""


class RunningTasks(TasksOfKind):
    """Runs each task as an asyncio task of the endpoint."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        runners: Mapping[str, TaskRunner],
        on_reports: Callable[[list[TaskReport]], None],
    ) -> None:
        """Create the collection of running tasks, without tasks.
        *on_reports* receives a task's final state, and a decline for each checkpoint order.
        """
        self._endpoint = endpoint
        self._runners = runners
        self._on_reports = on_reports
        self._tasks: dict[ExecutionAttemptID, _RunningTask] = {}
        self._kinds: dict[AllocationID, set[str]] = {}

    def start(
        self,
        deployments: TaskDeployments,
        tasks: Sequence[AcceptedTask],
        job_master_id: JobMasterId,
        blob_server: str | None,
    ) -> None:
        for accepted in tasks:
            self._start(
                RunnerTask(
                    deployments.job_id,
                    accepted.attempt_id,
                    accepted.vertex.invokable.kind,
                    accepted.deployment.allocation_id,
                    accepted.deployment.coordinator_attempt,
                    accepted.vertex.invokable.configuration,
                )
            )

    def _start(self, task: RunnerTask) -> None:
        run = self._endpoint.create_task(self._run(task), f"task {task.attempt_id}")
        running = self._tasks[task.attempt_id] = _RunningTask(task, run)
        self._kinds.setdefault(task.allocation_id, set()).add(task.kind)
        run.add_done_callback(lambda _: self._ended(running))

    def cancel(self, attempts: Sequence[ExecutionAttemptID]) -> None:
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None and not task.is_cancelling:
                task.is_cancelling = True
                task.run.cancel()

    def fail(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None and not task.is_cancelling:
            task.failure = cause
            self.cancel((attempt_id,))

    def order_checkpoint(
        self, order: CheckpointOrder, attempts: Sequence[ExecutionAttemptID]
    ) -> None:
        """Decline a checkpoint: these tasks take no part in checkpoints."""
        if isinstance(order, TriggerCheckpoint):
            running = [self._tasks[a].task for a in attempts if a in self._tasks]
            self._on_reports(
                [not_ready(task.job_id, order, task.attempt_id, _NO_PART) for task in running]
            )

    async def io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        return ()  # the coordinator of these tasks reports their metrics

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        for kind in sorted(self._kinds.pop(allocation_id, ())):
            await self._runners[kind].clean_up(job_id)

    def led_anew(self, job_id: JobID) -> None:
        """Do nothing when another JobMaster leads: these tasks have no shared parts."""

    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Do nothing: these tasks leave something only in their slots, which are cleaned up."""

    def forget_job(self, job_id: JobID) -> None:
        """Do nothing: only the slots of a job hold anything, and they are cleaned up."""

    async def _run(self, task: RunnerTask) -> FlinkRayError | None:
        try:
            await self._runners[task.kind].run(task)
        except FlinkRayError as error:
            return error
        return None

    def _ended(self, running: _RunningTask) -> None:
        task = running.task
        del self._tasks[task.attempt_id]
        failure = traceback = None
        if running.failure is not None:
            state, failure = ExecutionState.FAILED, running.failure
        elif running.run.cancelled():
            state = ExecutionState.CANCELED
        elif (error := running.run.exception() or running.run.result()) is not None:
            state, failure = ExecutionState.FAILED, str(error)
            traceback = getattr(error, "remote_traceback", None)
        else:
            state = ExecutionState.FINISHED
        end = TaskExecutionState(task.job_id, task.attempt_id, state, failure, traceback)
        self._on_reports([end])
