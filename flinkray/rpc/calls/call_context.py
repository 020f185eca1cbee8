"""The deadline of the call that a handler handles, which also limits the calls that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Protocol, TypeVar

T = TypeVar("T")


class CallInHandling(Protocol):
    """The deadlines of a received call, which the code of its handler can ask for. Implemented by
    :class:`flinkray.rpc.serving.dispatch.HandlerCall`."""

    deadline: float | None
    """The loop's time at which the caller stops waiting; None: no limit, or handler ended."""
    ask_deadline: float | None
    """The deadline in the loop's time that also limits the handler's own asks; None: no limit."""


current_call: ContextVar[CallInHandling | None] = ContextVar("current_call", default=None)


def deadline() -> float | None:
    """Return for how many more seconds the caller of the running handler waits for the answer.

    None: no handler runs here, or the caller waits without a limit (or, for a tell, not at all).
    Only a handler of :func:`~flinkray.rpc.gateway.runs_to_completion` can see 0.0 (the time is
    over), as any other handler is cancelled at the deadline.
    """
    call = current_call.get()
    if call is None or call.deadline is None:
        return None
    return max(0.0, call.deadline - asyncio.get_running_loop().time())


def outside_of_handler(fn: Callable[..., T], *args: object) -> T:
    """Call *fn* without the running handler's deadline, and return its result.

    Tasks that *fn* starts have no deadline either.
    """
    if current_call.get() is None:
        return fn(*args)
    context = copy_context()
    context.run(current_call.set, None)
    return context.run(fn, *args)
