"""Work that a service repeats, independent of its endpoints."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from flinkray.core.errors import ConfigurationError

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
