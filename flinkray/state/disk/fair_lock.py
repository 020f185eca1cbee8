"""A lock that threads get in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """For a ``with`` statement; a thread that has it may take it again.

    With Python's own locks, a thread that takes one again and again keeps all others out.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    @property
    def number_waiting(self) -> int:
        """Threads that have come and not had their turn."""
        return len(self._waiting)

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self._owner == me or self._owner is None:
                self._owner = me
                self._depth += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        turn.acquire()  # it is this thread's from then on

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            if not self._waiting:
                self._owner = None
                return
            self._owner, turn = self._waiting.popleft()
            self._depth = 1
            turn.release()
