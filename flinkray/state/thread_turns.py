"""How often threads of this process take turns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_TURN = 0.0005
"""Seconds."""

_lock = threading.Lock()
_waiting = 0
_usual = 0.0


def shorten_turns(seconds: float) -> None:
    """For good: threads that wait for the interpreter's lock wait for that long at most, before the
    one that has it is asked to let it go.  It is Python's own 5 ms at first."""
    global _usual
    with _lock:
        if _waiting:
            _usual = min(seconds, _usual)
        sys.setswitchinterval(min(seconds, sys.getswitchinterval()))


@contextmanager
def short_turns() -> Iterator[None]:
    """Have threads that wait for the interpreter's lock wait for half a millisecond, not for five.

    For what lets go of the lock very often, beside a thread that never does: each time it would
    wait for so long until it has the lock again.
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
