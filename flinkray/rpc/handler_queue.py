"""Runs the handlers of one endpoint, in the order in which their calls came.

A handler that never has to wait costs no task of its own: one task, the *runner*, runs the waiting
handlers one after the other.  The first one that has to wait keeps the runner for itself until it
is over, and another runner takes what is left.  So for each handler

- ``asyncio.current_task()`` is the same from its first line to its last, and no other handler's
  that is not over; cancelling it cancels this handler and nothing else;
- context variables are its own: each handler runs in a context that began empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Protocol

_ENDS_OF_PROCESS = (KeyboardInterrupt, SystemExit)
"""What is not only the caller's: the loop passes it on to who runs it."""


class Handling(Protocol):
    """One call and its handler."""

    coroutine: Coroutine[Any, Any, Any]
    """The handler, once begun."""
    is_over: bool
    """Also: it is not to be begun any more."""

    def is_held(self) -> None:
        """The queue is not open yet."""

    def begin(self) -> Any:
        """Run the handler until it waits for the first time; returns what it waits for.

        Raises:
            StopIteration: it did not wait, and this is its result.
            Exception: the handler's.
        """

    def waits(self, task: asyncio.Task[None]) -> None:
        """The handler has to wait; *task* is its own from now on."""

    def succeeded(self, result: object) -> None:
        """It is over, and this is its result."""

    def failed(self, error: BaseException) -> None:
        """It is over with an error, or was not begun because of one."""

    def cancelled(self) -> bool:
        """It was cancelled; returns whether nobody else needs to know."""

    def abandoned(self) -> None:
        """It was not begun, because the endpoint has terminated."""


class HandlerQueue:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Handling] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_closed = False
        # in their order, so that an end takes the same course whenever it is repeated
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of handlers that are not over."""
        return list(self._tasks)

    def post(self, call: Handling) -> None:
        """Handle *call* after all that were posted before, not before the queue was opened."""
        self._waiting.append(call)
        if not self._is_open:
            call.is_held()
        elif self._runner is None:
            self._start_runner()

    def open(self) -> None:
        """Handlers run from now on."""
        self._is_open = True
        if self._waiting and self._runner is None:
            self._start_runner()

    def close(self) -> None:
        """No handler begins any more; calls that wait, and further ones, are abandoned."""
        self._is_closed = True

    def abandon_waiting(self) -> None:
        """Abandon calls that wait, now."""
        while self._waiting:
            self._waiting.popleft().abandoned()

    def _start_runner(self) -> None:
        runner = self._runner = Context().run(self._loop.create_task, self._run())
        self._tasks[runner] = None
        runner.add_done_callback(self._tasks.pop)

    async def _run(self) -> None:
        runner = self._runner
        assert runner is not None
        waiting = self._waiting
        try:
            while waiting:
                call = waiting.popleft()
                if call.is_over:
                    continue
                if self._is_closed:
                    call.abandoned()
                    continue
                context = Context()
                try:
                    awaited = context.run(call.begin)
                except StopIteration as stop:
                    call.succeeded(stop.value)
                except asyncio.CancelledError:
                    call.cancelled()
                except GeneratorExit:  # the loop is gone
                    call.cancelled()
                    raise
                except BaseException as error:
                    call.failed(error)
                    if isinstance(error, _ENDS_OF_PROCESS):
                        raise
                else:
                    call.waits(runner)
                    self._pass_on(runner)
                    await _finish(call, context, awaited)
                    return
                if _is_to_be_cancelled(runner):
                    return  # a handler has cancelled its own task: that is not the next one's
        finally:
            self._pass_on(runner)

    def _pass_on(self, runner: asyncio.Task[None]) -> None:
        """Leave what waits to another runner."""
        if self._runner is runner:
            self._runner = None
            if self._waiting:
                self._start_runner()


async def _finish(call: Handling, context: Context, awaited: object) -> None:
    try:
        result = await _Rest(call.coroutine, context, awaited)
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
    except GeneratorExit:  # the loop is gone
        call.cancelled()
        raise
    except BaseException as error:
        call.failed(error)
        if isinstance(error, _ENDS_OF_PROCESS):
            raise
    else:
        call.succeeded(result)


class _Rest:
    """Awaits the rest of a handler that waits already, in its own context."""

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: object
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine, awaited = self._context.run, self._coroutine, self._awaited
        while True:
            try:
                try:
                    sent = yield awaited
                except BaseException as error:  # noqa: BLE001 - it is the handler's
                    awaited = run(coroutine.throw, error)
                else:
                    awaited = run(coroutine.send, sent)
            except StopIteration as stop:
                return stop.value


def _is_to_be_cancelled(task: asyncio.Task[None]) -> bool:
    # the same attribute in asyncio's C and Python tasks, in every version
    return bool(task._must_cancel)  # type: ignore[attr-defined]
