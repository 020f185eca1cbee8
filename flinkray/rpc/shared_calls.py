"""Calls whose result several callers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from flinkray.rpc.time_limit import retrieve

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Makes one call for all callers that want the same at the same time. Use it on one event loop.
    A call is under way until it returns or raises; all its callers get the same result or error."""

    def __init__(self) -> None:
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def result(self, key: K, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the call for *key* that is under way, or else of *call*.
        The call goes on if one of its callers is cancelled."""
        task = self._under_way.get(key)
        if task is None or task.done():
            task = self._under_way[key] = asyncio.ensure_future(call())
            task.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(task)

    async def cancel(self) -> None:
        """Cancel all calls that are under way, and return when they have ended."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _over(self, key: K, task: asyncio.Task[T]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        retrieve(task)  # all callers may have been cancelled
