"""Event loops for the coroutine functions of users."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.error_text import summary_of

T = TypeVar("T")

_CLOSE_GRACE = 1.0
"""Seconds that the coroutines of users have to end when their process ends."""


class MainLoop:
    """The event loop of the process's endpoint, callable from coroutines on another loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await the coroutine that *make* creates on the endpoint's loop, and return its result.
        Cancelling this call cancels the coroutine.
        """
        if asyncio.get_running_loop() is self.loop:
            return await make()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self.loop))


class CodeCall:
    """A coroutine of the user that a CodeLoop runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.task: asyncio.Task[Any] | None = None
        """The coroutine's task; used on the loop only."""
        self.outcome: Future[Any] = Future()
        """Result or error of the coroutine.
        Also completed, with an error, if the loop ends earlier.
        """

    def cancel(self) -> None:
        """Cancel the coroutine, even if it was cancelled before. Called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class CodeLoop:
    """Runs coroutines of users on an existing loop, possibly the endpoint's own.
    Simulated processes, which share one loop, run their coroutines only in this way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[CodeCall, None] = {}
        self._lock = threading.Lock()
        self._end: TaskError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the loop has ended, so that nothing can run here any more."""
        return self._end is not None

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> CodeCall:
        """Begin to run the coroutine that *make* creates on this loop. Called from any thread."""
        call = CodeCall(self._loop)
        with self._lock:
            if self._end is not None:
                call.outcome.set_exception(self._end)
                return call
            self._calls[call] = None
            self._loop.call_soon_threadsafe(self._begin, call, make)
        return call

    def _begin(self, call: CodeCall, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        coroutine = make()
        try:
            call.task = asyncio.ensure_future(coroutine)
            call.task.add_done_callback(lambda task: self._done(call, task))
        except Exception as error:  # noqa: BLE001 - the loop is the user's: it may be changed
            coroutine.close()
            self._finish(call, TaskError(f"its event loop does not take it: {summary_of(error)}"))

    def _done(self, call: CodeCall, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._finish(call, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._finish(call, error)
        else:
            self._finish(call, None, task.result())

    def _finish(self, call: CodeCall, error: BaseException | None, result: object = None) -> None:
        with self._lock:
            if call not in self._calls:
                return
            del self._calls[call]
        if error is None:
            call.outcome.set_result(result)
        else:
            call.outcome.set_exception(error)

    def close(self) -> None:
        """Do nothing: the loop ends together with the process."""

    def ended(self, reason: str) -> None:
        """Note that the loop has ended: fail everything that runs here, and refuse new calls."""
        with self._lock:
            self._end = TaskError(f"the event loop of the job's code has ended: {reason}")
            calls, self._calls = tuple(self._calls), {}
        for call in calls:
            call.outcome.set_exception(self._end)


class ThreadedCodeLoop(CodeLoop):
    """A loop in its own thread.
    Code that stops the loop, blocks it or cancels everything on it harms only its own job, and the
    process can still report this.
    """

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._is_closing = False
        threading.Thread(target=self._run, name="coroutines of the job", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()
            reason = "its process ends" if self._is_closing else "its code has stopped it"
        except BaseException as error:  # noqa: BLE001 - whatever a task of the user's raised
            reason = summary_of(error)
        self.ended(reason)
        self._loop.close()

    def close(self) -> None:
        """Cancel all coroutines. The loop stops when they have ended, or after _CLOSE_GRACE."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wind_up)

    def _wind_up(self) -> None:
        self._is_closing = True
        running = asyncio.all_tasks(self._loop)

        def left(task: asyncio.Task[Any]) -> None:
            running.discard(task)
            if not running:
                self._loop.stop()

        if not running:
            self._loop.stop()
        for task in tuple(running):
            task.add_done_callback(left)
            task.cancel()
        self._loop.call_later(_CLOSE_GRACE, self._loop.stop)


class CodeLoops:
    """Runs the coroutines of a process's job on a loop that they do not share with the endpoint.
    The loop is created on first use, and again after it has ended. Simulated processes use the
    endpoint's loop instead.
    """

    def __init__(self, main: MainLoop, *, is_threaded: bool) -> None:
        self.main = main
        self._is_threaded = is_threaded
        self._loop: CodeLoop | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> CodeCall:
        """Begin to run the coroutine that *make* creates on the job's loop.
        Called from any thread.
        """
        loop = self._present()
        if loop is not None:
            return loop.run(make)
        call = CodeCall(self.main.loop)
        call.outcome.set_exception(TaskError("the event loop of the job's code has ended"))
        return call

    def close(self) -> None:
        """Close the loop, and create no further one.
        Needed because threads of tasks outlive a simulated process.
        """
        with self._lock:
            self._is_closed = True
            if self._loop is not None:
                self._loop.close()

    def _present(self) -> CodeLoop | None:
        with self._lock:
            if self._is_closed:
                return self._loop
            if self._loop is None or self._loop.has_ended:
                threaded = self._is_threaded
                self._loop = ThreadedCodeLoop() if threaded else CodeLoop(self.main.loop)
            return self._loop
