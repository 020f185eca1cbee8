"""Blocking work of simulated processes: it takes a while, and no thread runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Stepping(Protocol):
    """A simulated process, as the blocking work in it sees it."""

    blocking_cost: float

    def create_future(self) -> asyncio.Future[Any]: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


class SimulatedExecutor(Executor):
    """What stands for a pool of threads: each call is one step of the process, some time later.

    Calls overtake each other, as they do in a pool.
    """

    def __init__(self, duration: Callable[[], tuple[float, float]]) -> None:
        """*duration* draws the seconds before and after the step."""
        self._duration = duration

    def run(self, process: Stepping, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run as a step of *process*; the future belongs to it."""
        future: asyncio.Future[T] = process.create_future()
        before, after = self._duration()

        def work() -> None:
            process.blocking_cost = 0.0
            try:
                result = function(*args)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                process.call_later(after + process.blocking_cost, fail, error)
            else:
                process.call_later(after + process.blocking_cost, succeed, result)

        def succeed(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        process.call_later(before, work)
        return future

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs at once, in the present step."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is held."""
