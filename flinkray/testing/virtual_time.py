"""An event loop on virtual time: waiting costs nothing, and a wait for nothing is an error."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from math import inf
from typing import Any, TypeVar

from typing_extensions import ParamSpec

T = TypeVar("T")
P = ParamSpec("P")


LIMIT = 3600.0
"""Virtual seconds after which a program is taken to wait for something that never comes."""


class NothingWillHappenError(RuntimeError):
    """The program waits for something that nobody will ever do."""


class _Selector(selectors.DefaultSelector):
    """Lets the loop's time pass instead of waiting, except for threads that are at work."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.blocking_calls > 0:
            return super().select(1.0)
        if timeout is None:
            raise NothingWillHappenError("every task waits, and no timer is set")
        self.loop.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time begins at 0 and passes only when all tasks wait.

    Work in threads takes no virtual time.  Sockets are served when they are ready, but the loop
    does not wait for them: what talks to the outside belongs on a real loop.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        selector = _Selector()
        selector.loop = self
        self._now = 0.0
        self.limit = limit
        self.blocking_calls = 0
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        if self._now > self.limit:
            raise NothingWillHappenError(f"nothing has come of waiting until {self._now:g} s")

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.blocking_calls += 1
        future.add_done_callback(self._blocking_call_done)
        return future

    def _blocking_call_done(self, _: asyncio.Future[Any]) -> None:
        self.blocking_calls -= 1


def run_on_virtual_time(
    main: Coroutine[Any, Any, T], limit: float = LIMIT, loop: VirtualTimeLoop | None = None
) -> T:
    """``asyncio.run`` on a loop of its own, or on *loop*.  *limit* in virtual seconds."""
    loop = loop or VirtualTimeLoop()
    loop.limit = limit
    try:
        return loop.run_until_complete(main)
    finally:
        loop.limit = inf
        while tasks := asyncio.all_tasks(loop):  # the end of one may be the beginning of another
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def on_virtual_time(
    test: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Make a test of an ``async def``: it runs on a loop of virtual time of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_on_virtual_time(test(*args, **kwargs))

    return run
