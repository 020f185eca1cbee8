"""Runs a user's function in a thread, which can be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable

from flinkray.actors.task_process.code_failure import CodeFailure, TaskCancelledError

_LEFT_ALONE = (
    "flinkray.streaming.network",
    "flinkray.state.thread_turns",
    "logging",
    "importlib._bootstrap",
)
"""Beginnings of names of modules. A thread is not interrupted while it runs a function of these."""


class CodeThread:
    """Runs a function in a thread, and can interrupt the function.
    :attr:`returned` is completed with the failure, or None. An interrupt is an exception that
    Python raises when the thread next runs Python code, so the interrupt must be set only while the
    function runs.
    """

    def __init__(self, function: Callable[[], object], name: str) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.returned: asyncio.Future[CodeFailure | None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._is_in_code = True
        self._is_interrupted = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Raise TaskCancelledError in the function, if this is safe.
        Nothing is raised if the function has returned, is in the channels of streams, writes to a
        log, or imports a module.

        In channels and logs the thread waits only for things that a cancellation ends. An exception
        at an arbitrary line could leave a connection in the middle of a frame, leave the lock of a
        log handler held, which blocks every thread that logs, or leave the lock of a module held,
        which blocks every thread that imports the module. The exception might even appear in
        another thread: until a starting thread runs, CPython takes it for the thread that starts
        it.
        """
        with self._lock:
            if self._is_in_code and not self._is_to_be_left_alone():
                self._is_interrupted = True
                self._set_exception()

    def _is_to_be_left_alone(self) -> bool:
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith(_LEFT_ALONE):
                return True
            frame = frame.f_back
        return False

    def _run(self) -> None:
        failure: CodeFailure | None = None
        try:
            try:
                self._function()
            except BaseException as error:  # noqa: BLE001 - whatever the user's code raised
                failure = CodeFailure.of(error)
        except TaskCancelledError as interrupt:  # interrupted while the failure was being described
            failure = CodeFailure.of(interrupt)
        while True:
            try:
                self._leave_code()
                break
            except TaskCancelledError:  # an interrupt that came at the last moment
                continue
        with contextlib.suppress(RuntimeError):  # the process ends
            self._loop.call_soon_threadsafe(self._tell, failure)

    def _leave_code(self) -> None:
        """End the interruptible part of the thread, and receive an interrupt that is still pending.

        The interrupt must be received, not cleared. Clearing it (setting no exception) would make
        CPython 3.11 look for an exception at each step from then on, in all threads, and for ever
        in a thread that is traced.
        """
        with self._lock:
            self._is_in_code = False
            is_interrupted, self._is_interrupted = self._is_interrupted, False
        if is_interrupted:
            with contextlib.suppress(TaskCancelledError):
                self._set_exception()  # replaces the pending exception, if there is one
                while True:
                    pass

    def _set_exception(self) -> None:
        identifier = self._thread.ident
        if identifier is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(identifier), ctypes.py_object(TaskCancelledError)
            )

    def _tell(self, failure: CodeFailure | None) -> None:
        if not self.returned.done():
            self.returned.set_result(failure)
