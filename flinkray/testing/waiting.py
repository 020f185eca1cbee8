"""Waits for the work of another process, if nothing reports when it is done."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar, overload

from flinkray.core.errors import FlinkRayError

T = TypeVar("T")
Errors: TypeAlias = tuple[type[Exception], ...]

_INTERVAL = 0.05


def wait_until(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """Call *condition* repeatedly until it is true; return its result. Blocks the thread.

    Args:
        timeout: seconds.
        what: completes "waited 10 s for …".

    Raises:
        AssertionError: *condition* was not true in time.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {value!r}")
        pause.wait(_INTERVAL)


# Overloads, because type checkers do not infer the result of an async function from a union of the
# two.
@overload
async def eventually(condition: Callable[[], Awaitable[T]], timeout: float, what: str) -> T: ...
@overload
async def eventually(condition: Callable[[], T], timeout: float, what: str) -> T: ...
async def eventually(condition: Callable[[], Awaitable[T] | T], timeout: float, what: str) -> T:
    """Call *condition* repeatedly on the event loop until it is true; return its result.

    *condition* may be async. A FlinkRayError counts as not true yet. Raises AssertionError after
    *timeout* seconds.
    """
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    complaint = f"waited {timeout:g} s for {what}"
    return await ask_again(condition, loop.time, timeout, _INTERVAL, (FlinkRayError,), complaint)


async def ask_again(
    condition: Callable[[], Awaitable[T] | T],
    clock: Callable[[], float],
    timeout: float,
    pause: float,
    retry_on: Errors,
    complaint: str,
) -> T:
    """Call *condition* repeatedly until it is true, and return its result; used by ``eventually``.

    Args:
        clock: returns the time, with which *timeout* is measured.
        pause: seconds between two calls.
        retry_on: errors that count as not true yet.
        complaint: beginning of the AssertionError's text.
    """
    __tracebackhide__ = True
    give_up = clock() + timeout
    while True:
        seen: object
        try:
            value = condition()
            result = await value if inspect.isawaitable(value) else value
        except retry_on as error:
            seen = error
        else:
            if result:
                return result
            seen = result
        if clock() >= give_up:
            # The cause is the last error of the condition, with its traceback.
            cause = seen if isinstance(seen, BaseException) else None
            raise AssertionError(f"{complaint}; last seen: {_shown(seen)}") from cause
        await asyncio.sleep(pause)


def _shown(seen: object) -> str:
    """Return what a condition has returned or raised last, as a text for an error."""
    return f"{type(seen).__name__}: {seen}" if isinstance(seen, BaseException) else repr(seen)
