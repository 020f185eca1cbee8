"""Makes SIGTERM act like Ctrl-C in a program that has joined or started Ray.

Ray replaces the effect of SIGTERM: by a Python function that exits with code 15, and beneath Python
by a function that prints the stacks of a crash. With this module the process ends with code 143,
unless other code has set a handler of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

from ray._private import utils

EXIT_CODE = 143
_SIZE_OF_ACTION = 256
"""Bytes; more than a ``struct sigaction`` has on any platform."""


@contextmanager
def sigterm_is_ours() -> Iterator[None]:
    """Context manager: keep Ray, which is started or joined in the block, from handling SIGTERM.
    Afterwards SIGTERM raises KeyboardInterrupt, if the default handler was in place and the caller
    runs in the main thread. Handlers of other code stay. A notebook or interactive interpreter
    keeps the default handler, because it would survive the exception."""
    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    of_ray, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_SIZE_OF_ACTION)
    libc.sigaction(signal.SIGTERM, None, action)
    try:
        yield
    finally:
        utils.set_sigterm_handler = of_ray
        libc.sigaction(signal.SIGTERM, action, None)
        if in_main_thread and before is signal.SIG_DFL and not _is_interactive():
            signal.signal(signal.SIGTERM, _Terminate())


def sigterm_is_not_ours_any_more() -> None:
    """Undo :func:`sigterm_is_ours`: restore the default handler, unless other code has set a
    handler since. Called in the main thread after Ray was left; does nothing in another thread."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and isinstance(signal.getsignal(signal.SIGTERM), _Terminate):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules


class _Terminate:
    def __init__(self) -> None:
        self._process = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child keeps its own handling
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        sys.excepthook = _exit_when_terminated
        raise KeyboardInterrupt("terminated")


def _exit_when_terminated(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, frames)
        return
    text = str(error)
    with suppress(OSError, ValueError, AttributeError):  # no standard error, or a closed one
        told = text if text in ("", "terminated") else f"terminated: {text}"
        sys.stderr.write(f"{told or 'terminated'}\n")
    raise SystemExit(EXIT_CODE)
