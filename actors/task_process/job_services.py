"""Requests of a task to its JobMaster for input splits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.job.input_splits import InputSplit

T = TypeVar("T")

_ASK_AGAIN = (
    RpcTimeoutError,
    RpcConnectionError,
    RecipientUnreachableError,
    JobMasterAwayError,
)
_RETRY_DELAY = 0.1
"""Seconds until an unanswered request is repeated."""


class JobServices:
    """Makes the requests of one attempt to its JobMaster.
    Each is repeated until it is answered. Requests are numbered, so that each takes effect once.
    """

    def __init__(
        self,
        attempt_id: ExecutionAttemptID,
        task_executor: TaskProcessListenerGateway,
        main: MainLoop,
    ) -> None:
        """Create the services of an attempt.
        *task_executor* forwards requests to the JobMaster and is called on *main*. The methods here
        are called where the task's code runs.
        """
        self._main = main
        self._attempt_id = attempt_id
        self._task_executor = task_executor
        self._splits = 0
        self._turn = asyncio.Lock()
        """Held during a request.
        User code may request from several coroutines, and the numbers must come in order.
        """

    async def next_input_split(self) -> InputSplit | None:
        """Return the next split; see :meth:`TaskContext.next_input_split`.

        Raises:
            TaskError, AttemptDisposedError: the attempt is no longer the current one.
        """
        return await self._main.call(self._next_input_split)

    async def _next_input_split(self) -> InputSplit | None:
        async with self._turn:
            attempt_id, number = self._attempt_id, self._splits
            split = await self._ask(
                lambda: self._task_executor.request_next_input_split(attempt_id, number)
            )
            if split is not None:
                self._splits += 1
            return split

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await request()
            except _ASK_AGAIN:
                # if the JobMaster is gone, the next one answers, or this task is cancelled
                await asyncio.sleep(_RETRY_DELAY)
