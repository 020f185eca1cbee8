"""Waiting for what another process does, where nothing tells when it is done."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flinkray.core.errors import FlinkRayError

T = TypeVar("T")

_INTERVAL = 0.05


def wait_until(condition: Callable[[], T], timeout: float, what: str) -> T:
    """Ask *condition* again and again until it is true; returns what it returned.

    Args:
        timeout: seconds.
        what: completes "waited 10 s for …".

    Raises:
        AssertionError: it was not true in time.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {value!r}")
        pause.wait(_INTERVAL)


async def eventually(condition: Callable[[], Awaitable[T] | T], timeout: float, what: str) -> T:
    """:func:`wait_until` for the loop; *condition* may be async.  FlinkRayErrors mean not yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        seen: T | FlinkRayError
        try:
            value = condition()
            seen = await value if inspect.isawaitable(value) else value
        except FlinkRayError as error:
            seen = error
        if seen and not isinstance(seen, FlinkRayError):
            return seen
        if loop.time() >= deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {seen!r}")
        await asyncio.sleep(_INTERVAL)
