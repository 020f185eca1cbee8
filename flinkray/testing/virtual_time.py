"""Virtual time for one program: waiting costs nothing, and a wait for nothing is an error.

The loop is a process of the simulation (:mod:`flinkray.testing.simulation`), the only one there is.
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
"""Virtual seconds after which a program is taken to wait for something that never comes."""


def run_on_virtual_time(main: Coroutine[Any, Any, T], limit: float = LIMIT) -> T:
    """``asyncio.run`` on virtual time, which begins at 0.  *limit* in virtual seconds.

    Work for an executor, whichever it is, takes no time.
    What runs when *main* is done is dropped as it is: nothing of it runs again.

    Raises:
        NothingWillHappenError: *main* waits for what nobody will do, or for longer than *limit*.
        ForbiddenInSimulationError: a thread, a socket, a real sleep or a process was asked for.
        Exception: what *main* raised, or an error that nobody awaits.
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
    """Make a test of an ``async def``: :func:`run_on_virtual_time`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return run_on_virtual_time(test(*args, **kwargs))

    return run


def block_for(seconds: float) -> None:
    """Stand still for so long: as a callback does that blocks, or a process that is stopped."""
    process = asyncio.get_running_loop()
    if not isinstance(process, SimulatedProcess):
        raise RuntimeError("only on virtual time can one stand still at no cost")
    process.scheduler.now += seconds
