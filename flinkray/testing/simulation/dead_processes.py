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
    """Holds objects of dead processes until the run is over. Python closes a suspended coroutine
    when no object refers to it, which runs its ``finally`` blocks: a killed process would still
    act."""

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
        """Refer to a stack until the run ends, so that Python does not unwind it before."""
        self._stacks.append(stack)

    def close(self) -> None:
        """Close the coroutines and stacks after the run, when their actions have no effect any
        more. If the garbage collector is off, the caller must collect the other objects, inside
        :func:`in_silence`."""
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
    """Context manager: suppress log lines and warnings in the block."""
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
    """Context manager: turn off the garbage collector in the block, for many runs one after the
    other. Yields a function that collects; call it after each run, when no object refers to the run
    any more. Otherwise the collector would scan the whole program and the present run again and
    again."""
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
    """Yield those coroutine objects among a coroutine's local variables that were never started.
    Python warns when such an object is collected, which may be in the middle of another run."""
    frame = getattr(coroutine, "cr_frame", None)
    for value in () if frame is None else frame.f_locals.values():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            yield value
