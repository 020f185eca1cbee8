"""Runs the handlers of one endpoint, in the order in which their calls came.

A handler that never has to wait needs no task of its own: one task, the *runner*, runs the waiting
handlers one after the other. The first handler that has to wait keeps the runner for itself until
the handler is over, and another runner takes the rest of the queue. So for each handler

- ``asyncio.current_task()`` is the same from its first line to its last, and is not the task of any
  other running handler; cancelling the task cancels this handler and nothing else;
- context variables are its own: each handler runs in a context that began empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Protocol

_ENDS_OF_PROCESS = (KeyboardInterrupt, SystemExit)
"""Exceptions that end the whole process: the loop passes them on to the code that runs it."""


class Handling(Protocol):
    """A call with its handler, as a :class:`HandlerQueue` runs it."""

    coroutine: Coroutine[Any, Any, Any]
    """The handler's coroutine; set once the handler has begun."""
    is_over: bool
    """True when the handler has ended, or is not to be begun any more."""

    def is_held(self) -> None:
        """Called when the call has to wait because the queue is not open yet."""

    def begin(self) -> Any:
        """Run the handler until it waits for the first time; return the awaited object.

        Raises:
            StopIteration: the handler did not wait; the value is its result.
            Exception: the exception of the handler.
        """

    def waits(self, task: asyncio.Task[None]) -> None:
        """Called when the handler has to wait; *task* belongs to the handler from now on."""

    def succeeded(self, result: object) -> None:
        """Called when the handler has returned *result*."""

    def failed(self, error: BaseException) -> None:
        """Called when the handler has failed with *error*, or was not begun because of *error*."""

    def cancelled(self) -> bool:
        """Called when the handler was cancelled; return False to end its task as cancelled, too."""

    def abandoned(self) -> None:
        """Called when the handler is not begun because the endpoint has terminated."""


class HandlerQueue:
    """Runs the handlers of one endpoint in order of arrival, with as few tasks as possible."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Handling] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_closed = False
        # in order of creation, so that a repeated run ends in the same way
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that run handlers of this endpoint and have not ended."""
        return list(self._tasks)

    def post(self, call: Handling) -> None:
        """Handle *call* after all calls posted before, but not before the queue was opened."""
        self._waiting.append(call)
        if not self._is_open:
            call.is_held()
        elif self._runner is None:
            self._start_runner()

    def open(self) -> None:
        """Run the waiting handlers, and begin further handlers as their calls arrive."""
        self._is_open = True
        if self._waiting and self._runner is None:
            self._start_runner()

    def close(self) -> None:
        """Begin no handler any more; calls that wait, and later calls, are abandoned."""
        self._is_closed = True

    def abandon_waiting(self) -> None:
        """Abandon the calls whose handlers have not begun, because the endpoint has terminated."""
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
                    return  # a handler cancelled its own task: the next handler needs another one
        finally:
            self._pass_on(runner)

    def _pass_on(self, runner: asyncio.Task[None]) -> None:
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
    """Awaitable for the rest of a handler that already waits, in the handler's own context."""

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
                except BaseException as error:  # noqa: BLE001 - passed to the handler
                    awaited = run(coroutine.throw, error)
                else:
                    awaited = run(coroutine.send, sent)
            except StopIteration as stop:
                return stop.value


def _is_to_be_cancelled(task: asyncio.Task[None]) -> bool:
    # the same attribute in asyncio's C and Python tasks, in every version
    return bool(task._must_cancel)  # type: ignore[attr-defined]
