"""Waiting with a time limit that is safe under cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """Return the result of *awaitable*, waiting at most *seconds* (None: without a limit).

    *awaitable* is cancelled when it takes too long or the caller is cancelled; this function does
    not wait for its end. Use this instead of ``asyncio.wait_for``, which before Python 3.12 loses a
    cancellation that comes in the same turn of the loop as the result (python/cpython#86296); a
    test keeps ``wait_for`` out of all shipped code. Raises asyncio.TimeoutError.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()  # no effect on a done task; a future that is not a task becomes done
        task.add_done_callback(retrieve)
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def retrieve(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a done future as seen, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
