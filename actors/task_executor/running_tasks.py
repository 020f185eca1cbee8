"""Runs the tasks of a TaskExecutor's own process until their ends, and reports the ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flinkray.actors.gateways.task_reports import TaskReport, not_ready
from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.actors.task_executor.tasks_of_kind import AcceptedTasks, TasksOfKind
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState

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
        """Create the collection of running tasks, without tasks. *on_reports* receives each task's
        final state, and its declines of checkpoints."""
        self._endpoint = endpoint
        self._runners = runners
        self._on_reports = on_reports
        self._tasks: dict[ExecutionAttemptID, _RunningTask] = {}
        self._kinds: dict[AllocationID, set[str]] = {}

    def start(self, accepted: AcceptedTasks) -> None:
        for task in accepted.tasks:
            self._start(
                RunnerTask(
                    accepted.deployments.job_id,
                    task.attempt_id,
                    task.vertex.invokable.kind,
                    task.deployment.allocation_id,
                    task.deployment.coordinator_attempt,
                    task.vertex.invokable.configuration,
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
        """Decline an order to begin a checkpoint: these tasks take no part in checkpoints.
        Other orders are ignored.
        """
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
        """Do nothing: these tasks keep no information that deployments share (``SharedPart``)."""

    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Do nothing: everything that these tasks leave is in their slots, which are cleaned up."""

    def forget_job(self, job_id: JobID) -> None:
        """Do nothing: everything that these tasks leave is in their slots, which are cleaned up."""

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
