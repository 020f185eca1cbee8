"""Controls how often the threads of this process take turns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_TURN = 0.0005
"""Length of a short turn in seconds."""

_lock = threading.Lock()
_waiting = 0
_usual = 0.0


def shorten_turns(seconds: float) -> None:
    """Permanently limit how long threads wait for the interpreter's lock.
    After that time, the holder of the lock is asked to release it. Python's default is 5 ms."""
    global _usual
    with _lock:
        if _waiting:
            _usual = min(seconds, _usual)
        sys.setswitchinterval(min(seconds, sys.getswitchinterval()))


@contextmanager
def short_turns() -> Iterator[None]:
    """While active, threads wait half a millisecond for the interpreter's lock instead of five.

    This is for code that releases the lock very often, beside a thread that never does.
    """
    global _waiting, _usual
    with _lock:
        if not _waiting:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT_TURN, _usual))
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if not _waiting:
                sys.setswitchinterval(_usual)
