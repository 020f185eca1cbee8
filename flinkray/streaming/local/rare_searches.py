"""Python's search for garbage in cycles, while a program runs in the user's own process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flinkray.core.garbage_collection import RARELY, YOUNG


@contextmanager
def rare_searches() -> Iterator[None]:
    """Batches are lists of new objects, hardly any of them garbage.  Nothing changes where searches
    are rarer or off already."""
    _Rarely.enter()
    try:
        yield
    finally:
        _Rarely.leave()


class _Rarely:
    """Programs in several threads share a process."""

    _lock = threading.Lock()
    _programs = 0
    _before: tuple[int, int, int] | None = None
    """What is put back after the last of them; None: nothing was changed."""

    @classmethod
    def enter(cls) -> None:
        with cls._lock:
            cls._programs += 1
            thresholds = gc.get_threshold()
            if cls._programs == 1 and 0 < thresholds[0] < YOUNG:
                cls._before = thresholds
                gc.set_threshold(*RARELY)

    @classmethod
    def leave(cls) -> None:
        with cls._lock:
            cls._programs -= 1
            if cls._programs == 0 and cls._before is not None:
                if gc.get_threshold() == RARELY:  # nobody has set others meanwhile
                    gc.set_threshold(*cls._before)
                cls._before = None
