"""Calls functions at the end of the interpreter, and in children that are forked.

Functions registered here run while thread pools still accept work. ``atexit`` would be too late.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - registers first, so that its call comes later
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class _Call:
    call: Callable[[], None]
    user: threading.Thread
    in_child: Callable[[], None]


_calls: dict[int, tuple[object, _Call]] = {}
_has_begun = False


def at_process_end(
    owner: object, call: Callable[[], None], user: threading.Thread, in_child: Callable[[], None]
) -> None:
    """Register functions of *owner* for the end of the interpreter and for forked children.

    They stay registered until :func:`not_at_process_end` is called with *owner*.

    Args:
        call: called when the interpreter ends, in the main thread, after *user* has ended.
        user: the thread that uses *owner*. The end of the interpreter waits for this thread, unless
            it is a daemon.
        in_child: called in a forked child, which has none of the threads of this process.

    Raises:
        RuntimeError: the interpreter is ending.
    """
    check_process_goes_on()
    _calls[id(owner)] = owner, _Call(call, user, in_child)


def check_process_goes_on() -> None:
    """Raise RuntimeError if the interpreter is ending; thread pools then accept no more work."""
    if _has_begun:
        raise RuntimeError(
            "the main thread has ended, and a program with checkpoints cannot be started any more: "
            "let the main thread wait for the thread that starts it (Thread.join)"
        )


def not_at_process_end(owner: object) -> None:
    """Forget the functions that :func:`at_process_end` registered for *owner*. Idempotent."""
    _calls.pop(id(owner), None)


def _process_ends() -> None:
    global _has_begun
    for _, each in tuple(_calls.values()):
        if each.user is not threading.main_thread() and not each.user.daemon:
            each.user.join()
    _has_begun = True
    for _, each in tuple(_calls.values()):
        with suppress(KeyboardInterrupt):  # a second Ctrl-C: go on with the others
            each.call()


def _forked() -> None:
    calls = tuple(_calls.values())
    _calls.clear()
    for _, each in calls:
        each.in_child()


threading._register_atexit(_process_ends)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_forked)
