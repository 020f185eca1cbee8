"""The main thread of one endpoint: its life cycle and everything that runs on it.

A handler that never has to wait needs no task of its own: one task, the *runner*, runs the waiting
handlers one after the other. The first handler that has to wait keeps the runner for itself until
the handler is over, and another runner takes the rest of the queue. So for each handler

- ``asyncio.current_task()`` is the same from its first line to its last, and is not the task of any
  other running handler; cancelling the task cancels this handler and nothing else;
- context variables are its own: each handler runs in a context that began empty.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

from flinkray.core.errors import HandlerCancelledError, RpcTimeoutError
from flinkray.rpc.calls.call_context import outside_of_handler
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.gateway import RpcGateway
from flinkray.rpc.wire.envelope import ended_with

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FEW_WATCHES = 32


class EndpointState(Enum):
    CREATED = "created"
    STARTED = "started"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


class TimerHandle:
    """A scheduled call of an endpoint's function; ``cancel`` withdraws it and is idempotent."""

    __slots__ = ("_handle", "_timers")

    def __init__(self, timers: dict[TimerHandle, None]) -> None:
        self._timers = timers
        self._handle: _Cancellable | None = None
        timers[self] = None

    def arm(self, handle: _Cancellable) -> None:
        self._handle = handle

    def cancel(self) -> None:
        self._timers.pop(self, None)
        if self._handle is not None:
            self._handle.cancel()


class HostedEndpoint(Protocol):
    """The methods and attributes of an endpoint that its mailbox and its service use. Implemented
    by :class:`flinkray.rpc.endpoint.RpcEndpoint`."""

    @property
    def address(self) -> str: ...
    @property
    def endpoint_id(self) -> str: ...
    @property
    def handler_grace(self) -> float: ...
    @property
    def mailbox(self) -> Mailbox: ...
    @property
    def is_running(self) -> bool: ...
    async def on_start(self) -> None: ...
    async def on_stop(self) -> None: ...
    def on_fatal_error(self, error: BaseException) -> None: ...
    def close(self) -> asyncio.Future[None]: ...


class Mailbox:
    """The life cycle of one endpoint, and its main thread, which runs all its code (see
    :mod:`flinkray.rpc.endpoint`)."""

    def __init__(
        self,
        endpoint: HostedEndpoint,
        loop: asyncio.AbstractEventLoop,
        watch: Callable[[str | RpcGateway, Callable[[str], None]], TerminationWatch],
        unregister: Callable[[HostedEndpoint], None],
    ) -> None:
        """Create the mailbox of *endpoint*, which is not started.

        *watch* and *unregister* are methods of the :class:`~flinkray.rpc.service.RpcService`.
        """
        self._endpoint = endpoint
        self._begin_watch = watch
        self._unregister = unregister
        self._loop = loop
        self._state = EndpointState.CREATED
        self.handlers = HandlerQueue(self._loop)
        """The queue of the calls; it opens when ``on_start`` is done."""
        # in order of creation, so that a repeated run ends in the same way
        self._background: dict[asyncio.Task[Any], None] = {}
        self._timers: dict[TimerHandle, None] = {}
        self._watches: dict[TerminationWatch, None] = {}
        self._look_at_watches = _FEW_WATCHES
        """The number of watches above which cancelled watches are removed."""
        self._start_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self.accepts_calls = False
        """Whether calls are accepted: from ``start`` until termination.

        Also False after a stop before ``on_start`` was done.
        """
        self.started: asyncio.Future[None] = self._loop.create_future()
        """Completes when ``on_start`` is done; cancelled if the endpoint ends before that."""
        self.terminated: asyncio.Future[None] = self._loop.create_future()

    @property
    def state(self) -> EndpointState:
        return self._state

    @property
    def is_running(self) -> bool:
        return self._state in (EndpointState.STARTED, EndpointState.RUNNING)

    @property
    def end_reason(self) -> str:
        """Text for callers and watchers that says why the endpoint has terminated."""
        return ended_with(self._error)

    def validate_runs_in_main_thread(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise RuntimeError(
                f"called outside the main thread of {self._endpoint.address}; use run_async"
            )

    # --- life cycle ---------------------------------------------------------------------------

    def start(self) -> None:
        self.validate_runs_in_main_thread()
        if self._state is not EndpointState.CREATED:
            raise RuntimeError(f"{self._endpoint.address} was started or closed before")
        self._state = EndpointState.STARTED
        self.accepts_calls = True
        self._start_task = self._loop.create_task(
            self._start(), name=f"{self._endpoint.address} on_start"
        )

    async def _start(self) -> None:
        try:
            await self._endpoint.on_start()
        except asyncio.CancelledError:
            if self._state is not EndpointState.STARTED:
                raise  # the endpoint ended before its start was done
            self._ends_with(self._cancelled("on_start"))
            self._begin_stop(run_on_stop=False)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the endpoint
            self._ends_with(error)
            self._begin_stop(run_on_stop=False)
            return
        if self._state is EndpointState.STARTED:
            self._state = EndpointState.RUNNING
        self.started.set_result(None)
        self.handlers.open()

    def close(self) -> asyncio.Future[None]:
        self.validate_runs_in_main_thread()
        was_created = self._state is EndpointState.CREATED
        self._begin_stop(run_on_stop=not was_created)
        return self.terminated

    def fail(self, error: BaseException) -> None:
        """Log *error* and begin to close the endpoint; ``terminated`` will fail with *error*."""
        logger.error("%s failed: %r", self._endpoint.address, error, exc_info=error)
        self._ends_with(error)
        self._begin_stop(run_on_stop=self._state is not EndpointState.CREATED)

    def _ends_with(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error

    def _begin_stop(self, *, run_on_stop: bool) -> None:
        if self._stop_task is None and self._state is not EndpointState.TERMINATED:
            self._state = EndpointState.STOPPING
            self._stop_task = self._loop.create_task(
                self._stop(run_on_stop), name=f"{self._endpoint.address} on_stop"
            )

    async def _stop(self, run_on_stop: bool) -> None:
        try:
            if self._start_task is not None and not self._start_task.done():
                self._start_task.cancel()
                await asyncio.wait({self._start_task})
            if not self.started.done():
                self._refuse_calls()
            self.handlers.open()
            if run_on_stop:
                await self._endpoint.on_stop()
        except asyncio.CancelledError:
            if self._state is EndpointState.TERMINATED:
                raise  # the process died
            self._ends_with(self._cancelled("on_stop"))
        except Exception as error:  # noqa: BLE001 - whatever it is, termination carries it
            self._ends_with(error)
        self._state = EndpointState.TERMINATED
        self._refuse_calls()
        if self.handlers.tasks:
            await asyncio.wait(self.handlers.tasks, timeout=self._endpoint.handler_grace)
        leftovers = self._release()
        if leftovers:
            await asyncio.wait(leftovers)
        self._unregister(self._endpoint)
        self._complete()

    def _cancelled(self, what: str) -> HandlerCancelledError:
        """Return the error with which the endpoint ends, because *what* (``on_start`` or
        ``on_stop``) was cancelled. Without an error the endpoint would never end."""
        return HandlerCancelledError(
            f"{self._endpoint.address}: {what} was cancelled, or something that it awaited"
        )

    def abort(self) -> None:
        """End at once without ``on_stop``, as if the process were killed."""
        self._state = EndpointState.TERMINATED
        self._refuse_calls()
        for task in (self._start_task, self._stop_task):
            if task is not None:
                task.cancel()
        self._release()
        self._unregister(self._endpoint)
        self._complete()

    def _refuse_calls(self) -> None:
        self.accepts_calls = False
        self.handlers.close()

    def _release(self) -> list[asyncio.Task[Any]]:
        for timer in tuple(self._timers):
            timer.cancel()
        for watch in tuple(self._watches):
            watch.cancel()
        self.handlers.abandon_waiting()
        current = asyncio.current_task(self._loop) if _on_loop(self._loop) else None
        tasks = [task for task in (*self.handlers.tasks, *self._background) if task is not current]
        for task in tasks:
            task.cancel()
        return tasks

    def _complete(self) -> None:
        if not self.started.done():
            self.started.cancel()
        if self.terminated.done():
            return
        if self._error is None:
            self.terminated.set_result(None)
        else:
            self.terminated.set_exception(self._error)
            self.terminated.exception()  # mark as read: asyncio must not log it

    # --- what runs here -----------------------------------------------------------------------

    def run_async(self, fn: Callable[[], Awaitable[None] | None]) -> None:
        if _on_loop(self._loop):
            outside_of_handler(self._loop.call_soon, self._invoke, fn)
        else:
            self._loop.call_soon_threadsafe(self._invoke, fn)

    def _invoke(self, fn: Callable[[], Awaitable[None] | None]) -> None:
        if self._state is EndpointState.TERMINATED:
            return
        try:
            result = fn()
        except Exception as error:  # noqa: BLE001 - the endpoint decides what it means
            self._endpoint.on_fatal_error(error)
            return
        if result is None:
            return
        if inspect.iscoroutine(result):  # a dropped wrapper of it would warn
            self.create_task(result, None)
        elif inspect.isawaitable(result):
            self.create_task(_await(result), None)

    def call_async(
        self, fn: Callable[[], Awaitable[T] | T], timeout: float | None
    ) -> asyncio.Future[T]:
        self.validate_runs_in_main_thread()
        future: asyncio.Future[T] = self._loop.create_future()
        outside_of_handler(self._loop.call_soon, self._call, fn, future)
        if timeout is not None:
            name = getattr(fn, "__qualname__", repr(fn))
            text = f"{self._endpoint.address}: {name} was not done within {timeout:g} s"
            timer = self._loop.call_later(timeout, _fail, future, text)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _call(self, fn: Callable[[], Awaitable[T] | T], future: asyncio.Future[T]) -> None:
        if self._state is EndpointState.TERMINATED:
            future.cancel()
            return

        async def run() -> None:
            try:
                result = fn()
                value = await result if inspect.isawaitable(result) else result
            except Exception as error:  # noqa: BLE001 - passed to the caller
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(value)

        task = self.create_task(run(), None)
        task.add_done_callback(lambda _: future.cancel())

    def schedule_run_async(
        self, delay: float, fn: Callable[[], Awaitable[None] | None]
    ) -> TimerHandle:
        return self._timer(partial(outside_of_handler, self._loop.call_later, delay), fn)

    def schedule_deadline(
        self,
        deadlines: PatientDeadlines,
        seconds: float,
        fn: Callable[[], Awaitable[None] | None],
    ) -> TimerHandle:
        return self._timer(partial(deadlines.call_after, seconds), fn)

    def _timer(
        self,
        start: Callable[[Callable[[], None]], _Cancellable],
        fn: Callable[[], Awaitable[None] | None],
    ) -> TimerHandle:
        self.validate_runs_in_main_thread()
        timer = TimerHandle(self._timers)

        def run() -> None:
            self._timers.pop(timer, None)
            self._invoke(fn)

        timer.arm(start(run))
        if self._state is EndpointState.TERMINATED:
            timer.cancel()
        return timer

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        self.validate_runs_in_main_thread()
        create_task = partial(self._loop.create_task, name=name)
        task: asyncio.Task[T] = outside_of_handler(create_task, coroutine)
        self._background[task] = None
        task.add_done_callback(self._background_done)
        if self._state is EndpointState.TERMINATED:
            task.cancel()
        return task

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        del self._background[task]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._state is EndpointState.TERMINATED:
            logger.warning("%s: error while it ended: %r", self._endpoint.address, error)
        else:
            self._endpoint.on_fatal_error(error)

    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        self.validate_runs_in_main_thread()

        def fired(reason: str) -> None:
            self._watches.pop(watch, None)
            self._invoke(lambda: on_terminated(reason))

        watch = self._begin_watch(target, fired)
        if watch.is_active and self._state is not EndpointState.TERMINATED:
            self._watches[watch] = None
            if len(self._watches) > self._look_at_watches:  # not at each new watch
                self._watches = {known: None for known in self._watches if known.is_active}
                self._look_at_watches = 2 * len(self._watches) + _FEW_WATCHES
        else:
            watch.cancel()
        return watch


def _fail(future: asyncio.Future[Any], text: str) -> None:
    if not future.done():
        future.set_exception(RpcTimeoutError(text))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_ENDS_OF_PROCESS = (KeyboardInterrupt, SystemExit)
"""Exceptions that end the whole process: the loop passes them on to the code that runs it."""


class Handling(Protocol):
    """A call with its handler, as a :class:`HandlerQueue` runs it."""

    coroutine: Coroutine[Any, Any, Any]
    """The handler's coroutine; set once the handler has begun."""
    is_over: bool
    """True when the handler has ended, or is not to be begun any more."""

    def is_held(self) -> None:
        """Called when the call has to wait because the endpoint does not run handlers yet."""

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
        """Called when the handler was cancelled. Return True to handle further calls in its task;
        False to end the task as cancelled, too."""

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
        """Handle *call* after all calls posted before, and not before :meth:`open`."""
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
        """Begin no handler any more: calls that wait, and later calls, fail because the endpoint
        ends."""
        self._is_closed = True

    def abandon_waiting(self) -> None:
        """Let the calls fail whose handlers have not begun, because the endpoint has terminated."""
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
    """Awaitable that runs the remainder of a handler, which is waiting already, in the handler's
    own context."""

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
