"""Background tasks that a service starts, and that are cancelled when the service ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from flinkray.rpc.calls.call_context import outside_of_handler

T = TypeVar("T")


class BackgroundTasks:
    """The background tasks of one service, which are cancelled when the service ends.

    A task continues when the handler that started it ends or reaches its deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        """Create the collection of background tasks, without tasks.
        *owner* is the prefix of the task names.
        """
        self._loop = loop
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def create(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that nobody awaits, and return the task.

        An exception goes to the loop's handler, which logs it; in a simulation it ends the run.
        """
        task = self.create_awaited(coroutine, name)
        task.add_done_callback(self.report_failure)
        return task

    def create_awaited(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that the caller awaits; its exception is reported to the caller only."""
        create_task = partial(self._loop.create_task, name=f"{self._owner}: {name}")
        task: asyncio.Task[T] = outside_of_handler(create_task, coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # mark as retrieved: the waiter may be gone

    def report_failure(self, task: asyncio.Task[Any]) -> None:
        """Report the exception of a finished task, if any, to the loop's exception handler."""
        if task.cancelled() or task.exception() is None:
            return
        message = f"{task.get_name()}: failed: {task.exception()!r}"
        self._loop.call_exception_handler(
            {"message": message, "exception": task.exception(), "task": task}
        )

    def cancel(self) -> tuple[asyncio.Task[Any], ...]:
        """Cancel all tasks; return the tasks that were still running."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks
