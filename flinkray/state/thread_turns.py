"""Sets how soon a thread of this process can take the interpreter's lock from another thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_TURN = 0.0005
"""Seconds that threads wait for the lock within :func:`short_turns`."""

_lock = threading.Lock()
_waiting = 0
_usual = 0.0


def shorten_turns(seconds: float) -> None:
    """Make threads of this process wait at most *seconds*, from now on, until they ask the holder
    of the interpreter's lock to release the lock. Python's default is 5 ms."""
    global _usual
    with _lock:
        if _waiting:
            _usual = min(seconds, _usual)
        sys.setswitchinterval(min(seconds, sys.getswitchinterval()))


@contextmanager
def short_turns() -> Iterator[None]:
    """Return a context manager that shortens the wait for the interpreter's lock.
    While it is active, threads wait half a millisecond instead of five. This is for code that
    releases the lock very often, beside a thread that never does."""
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
