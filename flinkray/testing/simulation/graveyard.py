"""What is left of dead processes: kept until the run is over, then closed without a word."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Stack(Protocol):
    """What a thread was at, as :mod:`~flinkray.testing.simulation.step_threads` has it."""

    def unwind(self) -> None: ...


class Graveyard:
    """Holds what must neither run nor be collected while the run goes on.

    A suspended coroutine that nobody holds any more is closed by Python, which runs its ``finally``
    blocks: a killed process would still act.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._things: list[object] = []
        self._stacks: list[Stack] = []

    def keep(self, thing: object) -> None:
        """Until the run is over."""
        if isinstance(thing, asyncio.Task):
            self._tasks.append(thing)
        else:
            self._things.append(thing)

    def keep_stack(self, stack: Stack) -> None:
        """Likewise."""
        self._stacks.append(stack)

    def close(self) -> None:
        """Close the coroutines, now that nothing they do has any effect.

        Who has switched the collector off collects what is left, and does so :func:`in_silence`.
        """
        with in_silence():
            while self._stacks:
                self._stacks.pop().unwind()
            while self._tasks:
                _close(self._tasks.pop())
            self._things.clear()
            if gc.isenabled():
                gc.collect(1)


@contextmanager
def in_silence() -> Iterator[None]:
    """Inside, what ends says nothing: neither log lines nor warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def collected_after_each() -> Iterator[Callable[[], None]]:
    """For many runs: the collector of garbage never looks at what was there before.

    It would look at the whole program again and again, and at all of a run that is not over.
    Yields what is to be called after each run, when nothing refers to it any more.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()

    def collect() -> None:
        with in_silence():
            gc.collect()

    try:
        yield collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _close(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    unbegun = list(_unbegun(coroutine))
    try:
        coroutine.close()
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - of a program that is over
        return
    finally:
        for inner in unbegun:
            inner.close()


def _unbegun(coroutine: object) -> Iterator[Coroutine[Any, Any, Any]]:
    """What it was given to await and has not come to: Python warns when such a one is collected,
    which may be in the middle of another run."""
    frame = getattr(coroutine, "cr_frame", None)
    for value in () if frame is None else frame.f_locals.values():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            yield value
