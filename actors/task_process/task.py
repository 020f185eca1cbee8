"""One attempt of a Python task, from its code being loaded to its end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from flinkray.actors.gateways.task_process import PartitionNotFoundError
from flinkray.actors.task_process.code_thread import CodeThread
from flinkray.actors.task_process.context import Cancellation, TaskCancelledError
from flinkray.actors.task_process.user_code import UserFunction
from flinkray.core.errors import RpcError, SuppressRestartsError
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.spark.user_code import UserCodeError
from flinkray.streaming.errors import OperatorError
from flinkray.streaming.network.errors import ChannelError, PartitionReleasedError

log = logging.getLogger(__name__)

_LONGEST_TEXT = 16 * 2**10
"""Characters of a failure's text and traceback: states travel many in one message."""

_CONSEQUENCES = (
    TaskCancelledError,
    ChannelError,
    PartitionNotFoundError,
    PartitionReleasedError,
    RpcError,
)
"""What a cancelled task fails with although nothing is wrong with its code."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Task:
    """Runs a function: a coroutine function on the process's event loop, which it must not block,
    any other in a thread of its own.

    Cancelling is cooperative first: what the function awaits is cancelled, the context says so.
    Every *interrupt_interval* seconds after that a coroutine is cancelled again, and in a thread
    :class:`TaskCancelledError` is raised, which comes through when it next runs Python code.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        job_id: JobID,
        attempt_id: ExecutionAttemptID,
        *,
        load: Callable[[], Awaitable[UserFunction]],
        open_context: Callable[[Cancellation], Awaitable[Any]],
        finish: Callable[[], Awaitable[None]],
        io_metrics: Callable[[], IOMetrics | None],
        report: Callable[[TaskExecutionState], None],
        interrupt_interval: float,
    ) -> None:
        """*open_context* makes what the function is called with; *finish* is called when it has
        returned: when that is done, the task is FINISHED.  *report* is called with RUNNING and then
        with the final state, or with that alone."""
        self._endpoint = endpoint
        self.job_id = job_id
        self._attempt_id = attempt_id
        self._load = load
        self._open_context = open_context
        self._finish = finish
        self.io_metrics = io_metrics
        """What it has read and written until now; its final state tells it, too."""
        self._report = report
        self._interrupt_interval = interrupt_interval
        self._cancellation = Cancellation(endpoint.rpc_service.loop)
        self._failure: str | None = None
        """Why it is ended, when that is a failure."""
        self._code: asyncio.Task[_Failed | None] | None = None
        self._thread: CodeThread | None = None

    def start(self) -> None:
        self._endpoint.create_task(self._run(), f"task {self._attempt_id}")

    def cancel(self) -> None:
        """Idempotent."""
        if not self._cancellation.is_requested:
            self._cancellation.request()
            self._interrupt_code()

    def abandon(self) -> None:
        """Its process is gone; where processes are pretended, threads outlive those that are
        killed."""
        self._cancellation.request()
        if self._thread is not None:
            self._thread.interrupt()

    def fail(self, cause: str) -> None:
        """End it as failed, unless it is being cancelled already."""
        if not self._cancellation.is_requested:
            self._failure = cause
            self.cancel()

    async def _run(self) -> None:
        if self._cancellation.is_requested:
            state = ExecutionState.CANCELED if self._failure is None else ExecutionState.FAILED
            self._report(self._state(state, self._failure))
            return
        self._code = self._endpoint.create_task(self._call_guarded())
        await asyncio.wait([self._code])
        if self._cancellation.is_requested:
            self._log_error_while_cancelled(self._code)
        if self._failure is not None:
            self._report(self._state(ExecutionState.FAILED, self._failure))
        elif self._cancellation.is_requested:
            self._report(self._state(ExecutionState.CANCELED))
        elif self._code.cancelled():
            self._report(self._state(ExecutionState.FAILED, "its code has cancelled itself"))
        elif (failed := self._code.result()) is not None:
            self._report(self._failed(failed.error))
        else:
            self._report(self._state(ExecutionState.FINISHED))

    def _log_error_while_cancelled(self, code: asyncio.Task[_Failed | None]) -> None:
        """Nobody else hears of it: the task is CANCELED, or has failed for another reason."""
        failed = None if code.cancelled() else code.result()
        if failed is not None and not isinstance(failed.error, _CONSEQUENCES):
            log.warning(
                "task %s failed while it was being cancelled",
                self._attempt_id,
                exc_info=failed.error,
            )

    async def _call_guarded(self) -> _Failed | None:
        try:
            await self._call()
        except (Exception, TaskCancelledError, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
            return _Failed(error)  # whatever the user's code raised
        return None

    async def _call(self) -> None:
        function = await self._load()
        context = await self._open_context(self._cancellation)
        self._report(self._state(ExecutionState.RUNNING))
        if _is_async(function):
            await function(context)
        else:
            await self._call_in_thread(function, context)
        self._thread = None
        await self._finish()

    async def _call_in_thread(self, function: UserFunction, context: Any) -> None:
        self._thread = CodeThread(lambda: function(context), f"task {self._attempt_id}")
        error = await self._thread.returned
        if error is not None:
            raise error if not isinstance(error, StopIteration) else RuntimeError(repr(error))

    def _interrupt_code(self) -> None:
        """Again and again until it has ended; the first time in a thread is but the flag."""
        if self._code is None or self._code.done():
            return
        if self._thread is None:
            self._code.cancel()
        self._endpoint.schedule_run_async(self._interrupt_interval, self._interrupt_again)

    def _interrupt_again(self) -> None:
        if self._thread is not None:
            self._thread.interrupt()
        self._interrupt_code()

    def _state(self, state: ExecutionState, failure: str | None = None) -> TaskExecutionState:
        metrics = self.io_metrics() if state.is_terminal else None
        return TaskExecutionState(self.job_id, self._attempt_id, state, failure, io_metrics=metrics)

    def _failed(self, error: BaseException) -> TaskExecutionState:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, OperatorError):
            text = str(error)  # which begins with the user's traceback
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        return TaskExecutionState(
            self.job_id,
            self._attempt_id,
            ExecutionState.FAILED,
            text[:_LONGEST_TEXT],
            "".join(lines)[-_LONGEST_TEXT:],
            isinstance(error, (SuppressRestartsError, UserCodeError)),
            error.missing if isinstance(error, PartitionNotFoundError) else (),
            self.io_metrics(),
        )


def _is_async(function: UserFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not whether, but what it is
    )
