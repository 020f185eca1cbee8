"""One attempt of a task, from loading its code to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from flinkray.actors.task_process.code_failure import (
    Cancellation,
    CodeFailedError,
    CodeFailure,
    TaskCancelledError,
)
from flinkray.actors.task_process.deployed_task import DeployedTask, TaskResources
from flinkray.actors.task_process.task_runtime import RunningCode, TaskRuntime
from flinkray.actors.task_process.user_code import UserFunction
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState

log = logging.getLogger(__name__)


class Task:
    """Runs the code of one attempt in a thread.

    A cancellation is cooperative first: it is announced to the code. After that, the thread gets a
    :class:`TaskCancelledError` every *interrupt_interval* seconds, which takes effect when the
    thread next runs Python code.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        deployed: DeployedTask,
        resources: TaskResources,
        *,
        load: Callable[[], Awaitable[UserFunction]],
        report: Callable[[TaskExecutionState], None],
        runtime: TaskRuntime,
        interrupt_interval: float,
    ) -> None:
        """Create a task that is not started.

        Args:
            load: returns the code, which is called with what *resources* open.
            report: called with RUNNING and then the final state, or with the final state alone.
        """
        self._endpoint = endpoint
        self.job_id = deployed.job.job_id
        self._attempt_id = deployed.attempt_id
        self._name = deployed.vertex.task(deployed.task.subtask_index)
        """Name of the vertex with the number of the subtask."""
        self._resources = resources
        self._load = load
        self._report = report
        self._runtime = runtime
        self._interrupt_interval = interrupt_interval
        self._cancellation = Cancellation()
        self._failure: str | None = None
        """Why the task must end as failed. None for an ordinary cancellation."""
        self._attempt: asyncio.Task[CodeFailure | None] | None = None
        self._code: RunningCode | None = None

    def io_metrics(self) -> IOMetrics | None:
        """Return the task's I/O metrics so far. The final state contains them, too."""
        return self._resources.io_metrics()

    def start(self) -> None:
        name = f"task {self._name} (attempt {self._attempt_id})"
        self._endpoint.create_task(self._run(), name)

    def cancel(self) -> None:
        """Begin to cancel the task. Idempotent."""
        if not self._cancellation.is_requested:
            self._cancellation.request()
            self._interrupt_code()

    def abandon(self) -> None:
        """Interrupt the code, because its simulated process has ended but threads would run on."""
        self._cancellation.request()
        if self._code is not None:
            self._code.interrupt()

    def fail(self, cause: str) -> None:
        """End the task as failed, unless it is already being cancelled."""
        if not self._cancellation.is_requested:
            self._failure = cause
            self.cancel()

    async def _run(self) -> None:
        if self._cancellation.is_requested:
            state = ExecutionState.CANCELED if self._failure is None else ExecutionState.FAILED
            self._report(self._state(state, self._failure))
            return
        self._attempt = self._endpoint.create_task(self._call_guarded())
        await asyncio.wait([self._attempt])
        cancelled = asyncio.CancelledError()
        failed = CodeFailure.of(cancelled) if self._attempt.cancelled() else self._attempt.result()
        await self._resources.settle()
        if self._cancellation.is_requested and failed is not None and not failed.is_consequence:
            # Only the log gets this failure: the task is CANCELED, or has failed for another
            # reason.
            log.warning(
                "task %s (attempt %s) failed while it was being cancelled: %s\n%s",
                self._name,
                self._attempt_id,
                failed.text,
                failed.traceback,
            )
        if self._failure is not None:
            self._report(self._state(ExecutionState.FAILED, self._failure))
        elif self._cancellation.is_requested:
            self._report(self._state(ExecutionState.CANCELED))
        elif failed is not None:
            self._report(self._failed(failed))
        else:
            self._report(self._state(ExecutionState.FINISHED))

    async def _call_guarded(self) -> CodeFailure | None:
        try:
            return await self._call()
        except CodeFailedError as error:
            return error.failure
        except (Exception, TaskCancelledError) as error:  # noqa: BLE001 - whatever ends the task
            return CodeFailure.of(error)

    async def _call(self) -> CodeFailure | None:
        code = await self._load()
        context = await self._resources.open(self._cancellation)
        self._report(self._state(ExecutionState.RUNNING))
        self._code = self._begin(code, context)
        failure = await self._code.returned
        self._code = None
        if failure is None:
            await self._resources.finish()
        return failure

    def _begin(self, code: UserFunction, context: Any) -> RunningCode:
        return self._runtime.run(lambda: code(context), f"task {self._attempt_id}")

    def _interrupt_code(self) -> None:
        """Cancel the attempt if its code does not run yet. Otherwise interrupt the code after the
        interval, and again after each further interval, until it has ended."""
        if self._attempt is None or self._attempt.done():
            return
        if self._code is None:
            self._attempt.cancel()
        self._endpoint.schedule_run_async(self._interrupt_interval, self._interrupt_again)

    def _interrupt_again(self) -> None:
        if self._code is not None:
            self._code.interrupt()
        self._interrupt_code()

    def _state(self, state: ExecutionState, failure: str | None = None) -> TaskExecutionState:
        metrics = self.io_metrics() if state.is_terminal else None
        return TaskExecutionState(self.job_id, self._attempt_id, state, failure, io_metrics=metrics)

    def _failed(self, failure: CodeFailure) -> TaskExecutionState:
        return TaskExecutionState(
            self.job_id,
            self._attempt_id,
            ExecutionState.FAILED,
            failure.text,
            failure.traceback,
            failure.suppress_restarts,
            failure.missing_partitions,
            self.io_metrics(),
            failure.program_error,
        )
