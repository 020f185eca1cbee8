"""The tasks that run in a TaskExecutor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flinkray.actors.task_executor.task_runners import RunnerTask, TaskRunner
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState


@dataclass(slots=True)
class _RunningTask:
    task: RunnerTask
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

    def runs(self, kind: str) -> bool:
        """Whether tasks of that kind can run here."""
        return kind in self._runners

    def start(self, task: RunnerTask, job_master_id: JobMasterId) -> None:
        """Run a task in its slot, which the slot table has found to be its job's."""
        run = self._endpoint.create_task(self._run(task, job_master_id), f"task {task.attempt_id}")
        running = self._tasks[task.attempt_id] = _RunningTask(task, run)
        self._kinds.setdefault(task.allocation_id, set()).add(task.kind)
        run.add_done_callback(lambda _: self._ended(running))

    def cancel(self, attempt_id: ExecutionAttemptID) -> None:
        """Idempotent, also for tasks that have ended."""
        task = self._tasks.get(attempt_id)
        if task is not None and not task.is_cancelling:
            task.is_cancelling = True
            task.run.cancel()

    def job_of(self, attempt_id: ExecutionAttemptID) -> JobID | None:
        """None: no such task runs."""
        task = self._tasks.get(attempt_id)
        return None if task is None else task.task.job_id

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """The attempts of a job that run, oldest first."""
        return tuple(
            attempt_id for attempt_id, task in self._tasks.items() if task.task.job_id == job_id
        )

    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End what the tasks that ran in a slot have left behind."""
        for kind in sorted(self._kinds.pop(allocation_id, ())):
            await self._runners[kind].clean_up(job_id)

    async def _run(self, task: RunnerTask, job_master_id: JobMasterId) -> FlinkRayError | None:
        try:
            await self._runners[task.kind].run(task, job_master_id)
        except FlinkRayError as error:
            return error
        return None

    def _ended(self, running: _RunningTask) -> None:
        task = running.task
        del self._tasks[task.attempt_id]
        failure = traceback = None
        if running.run.cancelled():
            state = ExecutionState.CANCELED
        elif (error := running.run.exception() or running.run.result()) is not None:
            state, failure = ExecutionState.FAILED, str(error)
            traceback = getattr(error, "remote_traceback", None)
        else:
            state = ExecutionState.FINISHED
        self._on_ended(TaskExecutionState(task.job_id, task.attempt_id, state, failure, traceback))
