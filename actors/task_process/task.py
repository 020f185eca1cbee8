"""One attempt of a Python task, from loading its code to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from flinkray.actors.task_process.code_failure import (
    CodeFailedError,
    CodeFailure,
    TaskCancelledError,
)
from flinkray.actors.task_process.code_loop import CodeCall, CodeLoops
from flinkray.actors.task_process.context import Cancellation
from flinkray.actors.task_process.task_runtime import RunningCode, TaskRuntime
from flinkray.actors.task_process.user_code import LoadedCode, UserFunction
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState

log = logging.getLogger(__name__)


class Task:
    """Runs the function of one attempt: a coroutine on the job's loop, otherwise in a thread.

    A cancellation is cooperative first: the awaited operation in the function is cancelled. After
    that, every *interrupt_interval* seconds a coroutine is cancelled again, and a thread gets a
    :class:`TaskCancelledError`, which takes effect when the thread next runs Python code.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        job_id: JobID,
        attempt_id: ExecutionAttemptID,
        name: str,
        *,
        load: Callable[[], Awaitable[LoadedCode]],
        open_context: Callable[[Cancellation], Awaitable[Any]],
        finish: Callable[[], Awaitable[None]],
        settle: Callable[[], Awaitable[None]],
        io_metrics: Callable[[], IOMetrics | None],
        report: Callable[[TaskExecutionState], None],
        code_loops: CodeLoops,
        runtime: TaskRuntime,
        interrupt_interval: float,
    ) -> None:
        """Create a task that is not started.

        Args:
            open_context: creates the argument of the function.
            finish: called when the function has returned; after it the task is FINISHED.
            settle: called in any case before the end of the task is reported.
            report: called with RUNNING and then the final state, or with the final state alone.
        """
        self._endpoint = endpoint
        self.job_id = job_id
        self._attempt_id = attempt_id
        self._name = name
        """Name of the vertex with the number of the subtask."""
        self._load = load
        self._open_context = open_context
        self._finish = finish
        self._settle = settle
        self.io_metrics = io_metrics
        """Returns the task's I/O metrics so far. The final state contains them, too."""
        self._report = report
        self._code_loops = code_loops
        self._runtime = runtime
        self._interrupt_interval = interrupt_interval
        self._cancellation = Cancellation(code_loops)
        self._failure: str | None = None
        """Why the task must end as failed. None for an ordinary cancellation."""
        self._attempt: asyncio.Task[CodeFailure | None] | None = None
        self._thread: RunningCode | None = None
        self._coroutine: CodeCall | None = None

    def start(self) -> None:
        name = f"task {self._name} (attempt {self._attempt_id})"
        self._endpoint.create_task(self._run(), name)

    def cancel(self) -> None:
        """Cancel the task. Idempotent."""
        if not self._cancellation.is_requested:
            self._cancellation.request()
            self._interrupt_code()

    def abandon(self) -> None:
        """Interrupt the code of a simulated process that has ended. Its threads would run on."""
        self._cancellation.request()
        if self._thread is not None:
            self._thread.interrupt()
        if self._coroutine is not None:
            self._coroutine.cancel()

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
        await self._settle()
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
        context = await self._open_context(self._cancellation)
        self._report(self._state(ExecutionState.RUNNING))
        if code.is_async:
            failure = await self._await_coroutine(code.function, context)
        else:
            failure = await self._call_in_thread(code.function, context)
        if failure is None:
            await self._finish()
        return failure

    async def _await_coroutine(self, function: UserFunction, context: Any) -> CodeFailure | None:
        async def described() -> CodeFailure | None:
            try:
                await function(context)
            except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
                return CodeFailure.of(error)
            return None

        self._coroutine = self._code_loops.run(described)
        outcome = asyncio.wrap_future(self._coroutine.outcome)
        await asyncio.wait([outcome])
        self._coroutine = None
        failure: CodeFailure | None = outcome.result()
        return failure

    async def _call_in_thread(self, function: UserFunction, context: Any) -> CodeFailure | None:
        self._thread = self._runtime.run(lambda: function(context), f"task {self._attempt_id}")
        failure = await self._thread.returned
        self._thread = None
        return failure

    def _interrupt_code(self) -> None:
        """Cancel or interrupt the code, and repeat this until the code has ended.
        Code in a thread is not interrupted the first time: only its cancellation flag is set.
        """
        if self._attempt is None or self._attempt.done():
            return
        if self._coroutine is not None:
            self._coroutine.cancel()
        elif self._thread is None:
            self._attempt.cancel()
        self._endpoint.schedule_run_async(self._interrupt_interval, self._interrupt_again)

    def _interrupt_again(self) -> None:
        if self._thread is not None:
            self._thread.interrupt()
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
