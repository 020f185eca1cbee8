"""A thread for user code that can be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable

from flinkray.actors.task_process.code_failure import CodeFailure, TaskCancelledError

_LEFT_ALONE = ("flinkray.streaming.network", "logging")


class CodeThread:
    """Runs a function; :attr:`returned` is what it failed with, or None, when it has returned.

    An interrupt is an exception that Python raises in the thread when that next runs Python code;
    so it must come only while the function runs, and not a moment later.
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
        """Raise TaskCancelledError in the function, if it has not returned, and unless it is in the
        channels of streams, or writes to a log.

        There it waits for nothing that a cancellation does not end; and an exception at any line
        could leave a connection in the middle of a frame, or the lock of a log handler held, which
        stops every thread that logs.  It might even come up in another thread: until a thread that
        is being started runs, CPython takes it for the one that starts it.
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
        except TaskCancelledError as interrupt:  # while it was being described
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
        """An interrupt that did not come any more comes here.

        It must come, and may not be taken back: to set no exception has CPython 3.11 look for one
        at each step from then on, in all threads, and for ever in one that is traced.
        """
        with self._lock:
            self._is_in_code = False
            is_interrupted, self._is_interrupted = self._is_interrupted, False
        if is_interrupted:
            with contextlib.suppress(TaskCancelledError):
                self._set_exception()  # in place of the one that is waiting, if one is
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
