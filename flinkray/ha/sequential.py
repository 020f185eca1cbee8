"""Blocking work of a store, one operation after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class Sequential:
    """Runs blocking functions in an executor, one at a time, in the order of the calls.

    A call that is cancelled has its function run all the same, and the next one waits for it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        task = asyncio.ensure_future(self._run(function))
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _run(self, function: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)


def _retrieve(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waits for it gets it; nobody may any more
