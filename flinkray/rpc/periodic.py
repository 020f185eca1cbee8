"""Work that a service repeats, whatever endpoints live on it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from flinkray.core.errors import ConfigurationError


class PeriodicTask:
    """Runs a function again and again; made by :meth:`RpcService.schedule_periodically`."""

    def __init__(
        self,
        create_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        fn: Callable[[], Awaitable[None] | None],
        interval: float,
        initial_delay: float,
    ) -> None:
        if not interval > 0:
            raise ConfigurationError(
                f"the interval of a periodic task ({interval:g} s) must be above 0"
            )
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Never completes; cancelled with the task, fails with what *fn* raised."""
        self._fn = fn
        self._interval = interval
        self._is_in_run = False
        self._task = create_task(self._repeat(initial_delay))
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """No further run; one that is under way goes on to its end.  Idempotent."""
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
            self.future.set_exception(error)
