"""What a handler knows of the call that it handles, and hands on to what it calls itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Protocol, TypeVar

T = TypeVar("T")


class CallInHandling(Protocol):
    """A call whose handler runs; see :class:`flinkray.rpc.serving.handler_call.HandlerCall`."""

    deadline: float | None
    """In the loop's time; None: none, or the handler is over."""
    ask_deadline: float | None
    """The same, where it holds for the asks that the handler makes too."""


current_call: ContextVar[CallInHandling | None] = ContextVar("current_call", default=None)


def deadline() -> float | None:
    """Seconds that the caller of the running handler still waits for its answer.

    None: no handler runs here, or its caller waits without a limit (or, for a tell, not at all).
    0.0 when the time is over; that is seen only by a handler that may not be stopped midway
    (:func:`~flinkray.rpc.gateway.runs_to_completion`), for any other is cancelled then.
    """
    call = current_call.get()
    if call is None or call.deadline is None:
        return None
    return max(0.0, call.deadline - asyncio.get_running_loop().time())


def outside_of_handler(fn: Callable[..., T], *args: object) -> T:
    """Call *fn* so that what it starts is not bound to the deadline of the running handler."""
    if current_call.get() is None:
        return fn(*args)
    context = copy_context()
    context.run(current_call.set, None)
    return context.run(fn, *args)
