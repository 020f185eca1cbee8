"""Runs the blocking work of simulated processes: it takes virtual time, and no real thread runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Stepping(Protocol):
    """Interface to a simulated process, for :class:`SimulatedExecutor`."""

    blocking_cost: float

    def create_future(self) -> asyncio.Future[Any]: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...


class SimulatedExecutor(Executor):
    """Replacement for a thread pool: runs each call in one step of the process, after some virtual
    time. As in a pool, a later call may be done before an earlier one."""

    def __init__(
        self,
        duration: Callable[[], tuple[float, float]],
        begin: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Create an executor.

        Args:
            duration: returns two random numbers: virtual seconds before and after the step that
                runs a call.
            begin: called in this step with the work, which it must run. None: the work is run
                directly.
        """
        self._duration = duration
        self._begin = begin

    def run(self, process: Stepping, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run *function* as a step of *process*, after some virtual time. Return a future of its
        result, which belongs to the process."""
        future: asyncio.Future[T] = process.create_future()
        before, after = self._duration()

        def work() -> None:
            process.blocking_cost = 0.0
            try:
                result = function(*args)
            except Exception as error:  # noqa: BLE001 - passed to the caller
                process.call_later(after + process.blocking_cost, fail, error)
            else:
                process.call_later(after + process.blocking_cost, succeed, result)

        def succeed(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        if self._begin is None:
            process.call_later(before, work)
        else:
            process.call_later(before, self._begin, work)
        return future

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run *fn* at once, in the current step."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - passed to the caller
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, because the executor has no threads."""
