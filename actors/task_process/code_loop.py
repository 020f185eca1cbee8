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
"""Seconds that coroutines have to leave when their process ends."""


class MainLoop:
    """The loop of the process's endpoint, for code that may run on another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await there what *make* makes; it is cancelled with this."""
        if asyncio.get_running_loop() is self.loop:
            return await make()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self.loop))


class CodeCall:
    """A coroutine of the user's on its way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.task: asyncio.Task[Any] | None = None
        """For the loop."""
        self.outcome: Future[Any] = Future()
        """Done also if the loop ends before."""

    def cancel(self) -> None:
        """Cancel the coroutine, once more if it was before; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class CodeLoop:
    """Runs coroutines of users on a loop that is there, be it the endpoint's own: where processes
    are pretended on one loop, nothing else runs them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[CodeCall, None] = {}
        self._lock = threading.Lock()
        self._end: TaskError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can run here any more."""
        return self._end is not None

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> CodeCall:
        """Await there what *make* makes; from any thread."""
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
        """The process ends, and its loop with it."""

    def ended(self, reason: str) -> None:
        """What runs here has failed, and nothing begins any more."""
        with self._lock:
            self._end = TaskError(f"the event loop of the job's code has ended: {reason}")
            calls, self._calls = tuple(self._calls), {}
        for call in calls:
            call.outcome.set_exception(self._end)


class ThreadedCodeLoop(CodeLoop):
    """A loop in a thread of its own: code that stops it, blocks it or cancels all that is on it
    harms its own job, and the process goes on to say so."""

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
        """Cancel what runs, and end when it has left or its time for that is over."""
        with contextlib.suppress(RuntimeError):  # it has ended
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
    """The loop of a process for the coroutines of its job: made when it is needed first, and again
    when it has ended."""

    def __init__(self, main: MainLoop, *, is_threaded: bool) -> None:
        self.main = main
        self._is_threaded = is_threaded
        self._loop: CodeLoop | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> CodeCall:
        """Await there what *make* makes; from any thread."""
        loop = self._present()
        if loop is not None:
            return loop.run(make)
        call = CodeCall(self.main.loop)
        call.outcome.set_exception(TaskError("the event loop of the job's code has ended"))
        return call

    def close(self) -> None:
        """The process ends, and no loop is made any more; where processes are pretended, threads
        of tasks outlive it."""
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
