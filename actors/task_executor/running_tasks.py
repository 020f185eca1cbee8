"""The tasks that run in a TaskExecutor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.task_executor.task_runners import TaskRunner
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskDeploymentDescriptor, TaskExecutionState


@dataclass(slots=True)
class _RunningTask:
    descriptor: TaskDeploymentDescriptor
    run: asyncio.Task[FlinkRayError | None]
    is_cancelling: bool = False


class RunningTasks:
    """Runs tasks by the runner of their kind, on the endpoint's main thread."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        runners: Mapping[str, TaskRunner],
        on_ended: Callable[[TaskExecutionState], None],
    ) -> None:
        """*on_ended* is called once for each task, with its final state."""
        self._endpoint = endpoint
        self._runners = runners
        self._on_ended = on_ended
        self._tasks: dict[ExecutionAttemptID, _RunningTask] = {}
        self._kinds: dict[AllocationID, set[str]] = {}
        """Kinds of the tasks that have run in a slot."""

    def check(self, descriptor: TaskDeploymentDescriptor) -> None:
        """Raises TaskError when a task of that kind cannot run here."""
        if descriptor.invokable_kind not in self._runners:
            raise TaskError(
                f"task {descriptor.task_name} ({descriptor.attempt_id}) is of kind "
                f"{descriptor.invokable_kind!r}; this TaskExecutor runs {sorted(self._runners)}"
            )

    def start(self, descriptor: TaskDeploymentDescriptor, job_master_id: JobMasterId) -> None:
        """Run a task in its slot; ``check`` and the slot table have accepted it."""
        run = self._endpoint.create_task(
            self._run(descriptor, job_master_id), f"task {descriptor.attempt_id}"
        )
        task = self._tasks[descriptor.attempt_id] = _RunningTask(descriptor, run)
        self._kinds.setdefault(descriptor.allocation_id, set()).add(descriptor.invokable_kind)
        run.add_done_callback(lambda _: self._ended(task))

    def cancel(self, attempt_id: ExecutionAttemptID) -> None:
        """Idempotent, also for tasks that have ended."""
        task = self._tasks.get(attempt_id)
        if task is not None and not task.is_cancelling:
            task.is_cancelling = True
            task.run.cancel()

    def job_of(self, attempt_id: ExecutionAttemptID) -> JobID | None:
        """None: no such task runs."""
        task = self._tasks.get(attempt_id)
        return None if task is None else task.descriptor.job_id

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """The attempts of a job that run, oldest first."""
        return tuple(
            attempt_id
            for attempt_id, task in self._tasks.items()
            if task.descriptor.job_id == job_id
        )

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End what the tasks that ran in a slot have left behind."""
        for kind in sorted(self._kinds.pop(allocation_id, ())):
            await self._runners[kind].clean_up(job_id)

    async def _run(
        self, descriptor: TaskDeploymentDescriptor, job_master_id: JobMasterId
    ) -> FlinkRayError | None:
        try:
            await self._runners[descriptor.invokable_kind].run(descriptor, job_master_id)
        except FlinkRayError as error:
            return error
        return None

    def _ended(self, task: _RunningTask) -> None:
        descriptor = task.descriptor
        del self._tasks[descriptor.attempt_id]
        failure = traceback = None
        if task.run.cancelled():
            state = ExecutionState.CANCELED
        elif (error := task.run.exception() or task.run.result()) is not None:
            state, failure = ExecutionState.FAILED, str(error)
            traceback = getattr(error, "remote_traceback", None)
        else:
            state = ExecutionState.FINISHED
        self._on_ended(
            TaskExecutionState(descriptor.job_id, descriptor.attempt_id, state, failure, traceback)
        )
