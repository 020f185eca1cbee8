"""Tasks that a service starts and that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from flinkray.rpc.calls.call_context import outside_of_handler

T = TypeVar("T")


class BackgroundTasks:
    """Those of one service; none belongs to the handler in which it was started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        """*owner* is what the names of tasks begin with."""
        self._loop = loop
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def create(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """One that nobody awaits.

        An exception goes to the loop's exception handler, which logs it with name and traceback; in
        a simulation it ends the run.
        """
        task = self.create_awaited(coroutine, name)
        task.add_done_callback(self.report_failure)
        return task

    def create_awaited(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """One whose exception is for who awaits it, and for nobody else."""
        create_task = partial(self._loop.create_task, name=f"{self._owner}: {name}")
        task: asyncio.Task[T] = outside_of_handler(create_task, coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # noted, should nobody wait any more

    def report_failure(self, task: asyncio.Task[Any]) -> None:
        """Tell the loop's exception handler what a task that is done has failed with, if it has."""
        if task.cancelled() or task.exception() is None:
            return
        message = f"{task.get_name()}: failed: {task.exception()!r}"
        self._loop.call_exception_handler(
            {"message": message, "exception": task.exception(), "task": task}
        )

    def cancel(self) -> tuple[asyncio.Task[Any], ...]:
        """Cancel all; returns those that were under way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks
