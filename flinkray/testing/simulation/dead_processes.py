"""Keeps the objects of dead processes until the run is over, then closes them silently."""

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
    """Interface to a stack of a thread (:mod:`~flinkray.testing.simulation.step_threads`)."""

    def unwind(self) -> None: ...


class Graveyard:
    """Holds objects that must neither run nor be collected while the run goes on.

    Python closes a suspended coroutine that nobody refers to, which runs its ``finally`` blocks: a
    killed process would still act.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._things: list[object] = []
        self._stacks: list[Stack] = []

    def keep(self, thing: object) -> None:
        """Keep *thing* until the run is over."""
        if isinstance(thing, asyncio.Task):
            self._tasks.append(thing)
        else:
            self._things.append(thing)

    def keep_stack(self, stack: Stack) -> None:
        """Keep a reference to a stack, so that it is not cleaned up before the run ends."""
        self._stacks.append(stack)

    def close(self) -> None:
        """Close the coroutines, because their actions have no effect any more.

        If the garbage collector is off, the caller must collect the rest, inside
        :func:`in_silence`.
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
    """Suppress log lines and warnings inside this context."""
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
    """Turn off the garbage collector inside this context, for many runs one after the other.

    Otherwise the collector would scan the whole program, and all of a run that is not over, again
    and again. Yields a function to call after each run, once nothing refers to the run any more.
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
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the program is over
        return
    finally:
        for inner in unbegun:
            inner.close()


def _unbegun(coroutine: object) -> Iterator[Coroutine[Any, Any, Any]]:
    """Yield the coroutine objects among a coroutine's local variables that were never awaited.

    Python warns when such an object is collected, which may be in the middle of another run.
    """
    frame = getattr(coroutine, "cr_frame", None)
    for value in () if frame is None else frame.f_locals.values():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            yield value
