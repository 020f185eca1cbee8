"""Ensures that a simulated run uses no real thread, sleep, socket or other process."""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from flinkray.testing.simulation.errors import ForbiddenInSimulationError

F = TypeVar("F", bound=Callable[..., Any])

_FORBIDDEN = {
    "_thread.start_new_thread": "a thread is started",
    "_thread.start_joinable_thread": "a thread is started",
    "socket.__new__": "a socket is made",
    "socket.getaddrinfo": "a host name is looked up",
    "time.sleep": "time.sleep is called",
    "subprocess.Popen": "a process is started",
    "os.fork": "a process is forked",
    "os.posix_spawn": "a process is started",
    "os.system": "a command is run",
}
_OWN = (sysconfig.get_path("stdlib"), str(Path(__file__).parent))

_guards: dict[int, Callable[[Exception], None]] = {}
"""For each thread: the function that gets the error of a forbidden call."""
_is_installed = False


def call_site() -> str:
    """Return the place of a forbidden call as ``file:line (function)``: the innermost frame outside
    of Python's library and the simulation."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _breach(event: str) -> None:
    report = _guards.get(threading.get_ident())
    if report is not None:
        error = ForbiddenInSimulationError(
            f"{_FORBIDDEN[event]} in a simulated run, at {call_site()}"
        )
        report(error)
        raise error


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN and _guards:
        _breach(event)


@contextmanager
def nothing_real(report: Callable[[Exception], None]) -> Iterator[None]:
    """Context manager: raise ForbiddenInSimulationError in this thread when it uses a real thread,
    sleep, socket or process in the block. *report* is called with the error before it is raised."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_audit)
    thread = threading.get_ident()
    before = _guards.get(thread)
    _guards[thread] = report
    # older Pythons audit neither sleep nor thread starts
    sleep, start = time.sleep, threading.Thread.start
    time.sleep = _guarded(sleep, "time.sleep")
    threading.Thread.start = _guarded(start, "_thread.start_new_thread")  # type: ignore[method-assign]
    try:
        yield
    finally:
        time.sleep = sleep
        threading.Thread.start = start  # type: ignore[method-assign]
        if before is None:
            del _guards[thread]
        else:
            _guards[thread] = before


def _guarded(function: F, event: str) -> F:
    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        _breach(event)
        return function(*args)

    return cast("F", guarded)
