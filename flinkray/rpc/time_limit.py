"""Waiting for so long and no longer, and ending when one is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """The result of *awaitable*, which is cancelled when it takes too long or nobody waits for it.

    As ``asyncio.wait_for``, which before Python 3.12 forgets a cancellation that comes in the same
    turn of the loop as the result (python/cpython#86296): a test keeps it out of all that ships.
    Unlike it, this one does not wait until what is cancelled has ended.  None: no limit.

    Raises:
        asyncio.TimeoutError: it was not done in time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()  # no harm if it is done; a future, other than a task, is done by it
        task.add_done_callback(retrieve)
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def retrieve(task: asyncio.Future[Any]) -> None:
    """When it is done and nobody asks: no complaint about its error."""
    if not task.cancelled():
        task.exception()
