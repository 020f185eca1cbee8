"""The threads of a process that write the state of its tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_MOST = 4
"""So many snapshots are written at a time: a large one does not hold up those of other tasks."""


class WriterThreads:
    """They are there from the first snapshot on."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_MOST, "write state")
        self._is_closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have *work* done, which must not raise; from any thread."""
        if not self._is_closed:
            self._executor.submit(work)

    def close(self) -> None:
        """The process ends: nothing is begun any more."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
