"""Sets how soon a thread of this process can take the interpreter's lock from another thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_TURN = 0.0005
"""Seconds that threads wait for the lock within :func:`short_turns`."""

GIVEN_WAY = 0.02
"""Seconds for which :func:`give_way` waits at most. A step of a task takes about 10 ms, so a task
does a third of its usual work meanwhile, and its mail waits no longer than that."""

LONGEST_FIRST = 2.0
"""Seconds after which others wait no more: a restore that takes longer waits for storage."""

_lock = threading.Lock()
_waiting = 0
_usual = 0.0
_first = 0
_first_until = 0.0
_none_is_first = threading.Event()


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


@contextmanager
def first_turn() -> Iterator[None]:
    """Return a context manager for a thread that restores state, before which no record of the task
    is processed. Other threads leave the interpreter's lock to this thread in :func:`give_way`.
    The thread releases the lock often: without short turns, each release costs 5 ms."""
    global _first, _first_until
    with short_turns():
        with _lock:
            if not _first:
                _first_until = time.monotonic() + LONGEST_FIRST
            _first += 1
            _none_is_first.clear()
        try:
            yield
        finally:
            with _lock:
                _first -= 1
                if not _first:
                    _none_is_first.set()


def give_way() -> None:
    """Wait while another thread of this process has its :func:`first_turn`, for at most
    :data:`GIVEN_WAY` seconds. Tasks call this between two steps."""
    if _first and time.monotonic() < _first_until:
        _none_is_first.wait(GIVEN_WAY)
