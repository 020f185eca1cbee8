"""Runs one program on virtual time: waiting takes no real time, and waiting in vain is an error.

The program's event loop is the only process of a simulation (:mod:`flinkray.testing.simulation`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from typing_extensions import ParamSpec

from flinkray.testing.simulation.blocking import SimulatedExecutor
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.scheduler import Scheduler
from flinkray.testing.simulation.seeds import stream

T = TypeVar("T")
P = ParamSpec("P")


LIMIT = 3600.0
"""Virtual seconds after which a program counts as waiting in vain."""


def run_on_virtual_time(main: Coroutine[Any, Any, T], limit: float = LIMIT) -> T:
    """Run *main* as ``asyncio.run`` does, on virtual time from 0; return its result.

    *limit* is in virtual seconds. Work in executors takes no time. Tasks that still run when *main*
    is done are dropped: none of their code runs again.

    Raises:
        NothingWillHappenError: *main* waits for an event that cannot happen, or beyond *limit*.
        ForbiddenInSimulationError: a thread, a socket, a real sleep or a process was asked for.
        Exception: the exception of *main*, or an error that nobody awaits.
    """
    __tracebackhide__ = True
    scheduler = Scheduler(stream(0, "schedule"), limit=limit)
    process = scheduler.new_process("test")
    process.executor = SimulatedExecutor(lambda: (0.0, 0.0))
    try:
        return process.run_until_complete(main)
    finally:
        scheduler.close()


def on_virtual_time(
    test: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Convert an ``async def`` test to a test that runs with :func:`run_on_virtual_time`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return run_on_virtual_time(test(*args, **kwargs))

    return run


def block_for(seconds: float) -> None:
    """Advance virtual time without running other callbacks, as a callback that blocks does."""
    process = asyncio.get_running_loop()
    if not isinstance(process, SimulatedProcess):
        raise RuntimeError("only on virtual time can one stand still at no cost")
    process.scheduler.now += seconds
