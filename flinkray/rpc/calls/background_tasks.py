"""Background tasks of a service, once or periodic; they are cancelled when the service ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from flinkray.core.errors import ConfigurationError
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
        """Cancel all tasks, without waiting; return the tasks that were still running."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks


logger = logging.getLogger(__name__)


class PeriodicTask:
    """Calls a function again and again; made by :meth:`RpcService.schedule_periodically`."""

    def __init__(
        self,
        create_awaited_task: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        fn: Callable[[], Awaitable[None] | None],
        interval: float,
        initial_delay: float,
    ) -> None:
        if not interval > 0:
            raise ConfigurationError(
                f"the interval of a periodic task ({interval:g} s) must be above 0"
            )
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Never completes: cancelled with the task, or fails with the exception of *fn*."""
        self._fn = fn
        self._interval = interval
        self._is_in_run = False
        name = getattr(fn, "__qualname__", repr(fn))
        task_name = f"{name}, each {interval:g} s"
        self._task = create_awaited_task(self._repeat(initial_delay), task_name)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Start no further run. A run that is under way continues to its end. Idempotent."""
        self.future.cancel()
        if not self._is_in_run:
            self._task.cancel()

    async def _repeat(self, delay: float) -> None:
        while not self.future.done():
            await asyncio.sleep(delay)
            self._is_in_run = True
            result = self._fn()
            if inspect.isawaitable(result):
                await result
            self._is_in_run = False
            delay = self._interval

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.future.cancel()
        elif not self.future.done():
            logger.error("%s: failed: %r", task.get_name(), error, exc_info=error)
            self.future.set_exception(error)
            self.future.exception()  # it was logged: asyncio must not warn
