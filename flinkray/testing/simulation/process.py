"""A simulated process: an event loop of its own, served by the scheduler of the simulation."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from enum import Enum
from heapq import heappush
from typing import Any, Protocol, TypeVar
from weakref import ref

from flinkray.testing.simulation.blocking import SimulatedExecutor
from flinkray.testing.simulation.errors import ForbiddenInSimulationError
from flinkray.testing.simulation.forbidden import call_site
from flinkray.testing.simulation.graveyard import Graveyard
from flinkray.testing.simulation.unreal_loop import UnrealLoop

T = TypeVar("T")

_FEW_TASKS = 32


class ProcessState(Enum):
    """What the operating system would say."""

    RUNNING = "running"
    STOPPED = "stopped"
    """As by SIGSTOP: alive, and deaf."""
    DEAD = "dead"


class Handle(asyncio.Handle):
    """A callback that is ready to run."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'cancelled' if self._cancelled else self._callback!r}>"


class Timer(asyncio.TimerHandle):
    """A callback of a process that becomes ready at a time of the scheduler's clock."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        process: SimulatedProcess,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._scheduled = True
        self.process = process

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            self.process.scheduler.timer_cancelled()

    __repr__ = Handle.__repr__


class Serving(Protocol):
    """The :class:`~flinkray.testing.simulation.scheduler.Scheduler`, as its processes see it."""

    now: float
    heap: list[tuple[float, int, Timer | Callable[[], object]]]
    next_number: Callable[[], int]
    runnable: list[SimulatedProcess]
    graveyard: Graveyard
    thread: int
    is_running: bool

    def unlist(self, process: SimulatedProcess) -> None: ...
    def bury(self, process: SimulatedProcess) -> None: ...
    def at(self, when: float, callback: Callable[[], object]) -> None: ...
    def timer_cancelled(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def run_until(self, task: asyncio.Future[Any] | None) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def unhandled(self, process: SimulatedProcess, context: dict[str, Any]) -> None: ...


class SimulatedProcess(UnrealLoop):
    """Runs callbacks in the order in which they became ready, when the scheduler lets it.

    Between processes there is no order but what the seed says.  Once dead, nothing of a process
    ever runs again, not even a ``finally``.
    """

    def __init__(self, scheduler: Serving, name: str, number: int, node: str) -> None:
        """For :meth:`Scheduler.new_process`."""
        self.scheduler = scheduler
        self.name = name
        """As the network knows it; several processes may have it one after the other."""
        self.kind = name.partition("-")[0]
        """What the name begins with: ``TaskExecutor`` of ``TaskExecutor-7``."""
        self.number = number
        """Never used twice in a run."""
        self.node = node
        self.state = ProcessState.RUNNING
        self.context = Context()
        """What is started in the process from outside runs in copies of it."""
        self.simulation: object = None
        """The :class:`~flinkray.testing.simulation.simulation.Simulation` that it is of."""
        self.executor: SimulatedExecutor | None = None
        """What does the work for any executor; None: only its own kind is allowed."""
        self.clock_error = 0.0
        """Seconds by which its wall clock is wrong."""
        self.blocking_cost = 0.0
        """For disks: seconds that the blocking work that runs now takes more than it would."""
        self.step_cost = 0.0
        """Virtual seconds that each callback takes: above zero on a slow node."""
        self.steps_left: int | None = None
        """The process is killed after so many callbacks; None: it is not."""
        self.exit_code: str | None = None
        """Why it is dead."""
        self.ready: deque[Handle | Timer] = deque()
        self.is_listed = False
        """For the scheduler: whether it is among those that can run."""
        self.has_started = False
        """Who wanted it knows that its endpoint is there."""
        self.is_banished = False
        """It is taken for dead."""
        self.is_frozen = False
        """It is stopped for good."""
        self.is_special = False
        """For the scheduler: whether there is more to do after a step than to go on."""
        self._is_busy = False
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._look_at_tasks = _FEW_TASKS
        """When there are so many, those that are gone are taken out."""
        self._death_listeners: list[Callable[[], None]] = []
        self._exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        self._task_factory: Callable[..., asyncio.Task[Any]] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SimulatedProcess {self.name}.{self.number} {self.state.value}>"

    @property
    def is_alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    # --- fate, for the simulation ---------------------------------------------------------------

    def on_death(self, listener: Callable[[], None]) -> None:
        """Be told, outside of any process, when it dies."""
        self._death_listeners.append(listener)

    def die(self, reason: str) -> None:
        """As by SIGKILL: no callback of it runs after the one that runs now."""
        if self.state is ProcessState.DEAD:
            return
        self.state = ProcessState.DEAD
        self.exit_code = reason
        self.scheduler.bury(self)
        for listener in self._death_listeners:
            listener()

    def die_after(self, steps: int, reason: str) -> None:
        """Die in the middle of what it does: when so many more callbacks have run."""
        self.steps_left = steps
        self.exit_code = reason
        self.is_special = True

    def spare(self) -> None:
        """Take :meth:`die_after` back."""
        self.steps_left = self.exit_code = None
        self.is_special = self.step_cost > 0

    def stop_serving(self) -> None:
        """As by SIGSTOP."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.STOPPED
            self.scheduler.unlist(self)

    def freeze(self) -> None:
        """As :meth:`stop_serving`, for good."""
        self.is_frozen = True
        self.stop_serving()

    def resume(self) -> None:
        """As by SIGCONT: what became ready meanwhile runs now."""
        if self.state is ProcessState.STOPPED and not self.is_frozen:
            self.state = ProcessState.RUNNING
            self._list()

    def slow_down(self, step_cost: float) -> None:
        """From now on each callback takes so many virtual seconds; 0: none."""
        self.step_cost = step_cost
        self.is_special = step_cost > 0 or self.steps_left is not None

    def after_step(self) -> None:
        """For the scheduler, when :attr:`is_special`."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left <= 0:
                self.die(self.exit_code or "killed")
                return
        if self.step_cost > 0 and self.state is not ProcessState.DEAD:
            self._is_busy = True
            self.scheduler.unlist(self)
            self.scheduler.at(self.scheduler.now + self.step_cost, self._no_longer_busy)

    def _no_longer_busy(self) -> None:
        self._is_busy = False
        self._list()

    def _list(self) -> None:
        if (
            self.ready
            and not self.is_listed
            and not self._is_busy
            and self.state is ProcessState.RUNNING
        ):
            self.is_listed = True
            self.scheduler.runnable.append(self)

    def enqueue(self, handle: Handle | Timer) -> None:
        """Run when its turn comes; of a timer the time has come."""
        self.ready.append(handle)
        if not self.is_listed:
            self._list()

    # --- called from outside: by what surrounds processes ---------------------------------------

    def post(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> None:
        """Run in this process, *delay* seconds from now; dropped if it is dead by then."""
        when = self.scheduler.now + delay
        self.post_at(when, context or self.context.copy(), callback, *args)

    def post_at(
        self, when: float, context: Context, callback: Callable[..., object], *args: Any
    ) -> None:
        """:meth:`post` at a time of the scheduler's clock."""
        scheduler = self.scheduler
        timer = Timer(when, callback, args, context, self)
        if when > scheduler.now:
            heappush(scheduler.heap, (when, scheduler.next_number(), timer))
        else:
            self.enqueue(timer)

    # --- the event loop that runs in it ---------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context)
        if self.state is ProcessState.DEAD:
            self.scheduler.graveyard.keep(handle)
            return handle
        self.ready.append(handle)
        if not self.is_listed:
            self._list()
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Timer:
        return self.call_at(self.scheduler.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Timer:
        timer = Timer(when, callback, args, copy_context() if context is None else context, self)
        scheduler = self.scheduler
        if when > scheduler.now:
            heappush(scheduler.heap, (when, scheduler.next_number(), timer))
        else:
            self.enqueue(timer)
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        if threading.get_ident() != self.scheduler.thread:
            raise self.refusal("a thread calls into it")
        return self.call_soon(callback, *args, context=context)

    def refusal(self, what: str) -> ForbiddenInSimulationError:
        error = ForbiddenInSimulationError(f"process {self.name}: {what}, at {call_site()}")
        self.scheduler.fail(error)
        return error

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if self._task_factory is not None:
            return self._task_factory(self, coro, **options)
        task = asyncio.Task(coro, loop=self, name=name, **options)
        if self.state is ProcessState.DEAD:
            self.scheduler.graveyard.keep(task)
        tasks = self._tasks
        tasks.append(ref(task))
        if len(tasks) > self._look_at_tasks:
            self._tasks = tasks = [known for known in tasks if known() is not None]
            self._look_at_tasks = 2 * len(tasks) + _FEW_TASKS
        return task

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that are not done, oldest first."""
        found = (known() for known in self._tasks)
        return [task for task in found if task is not None and not task.done()]

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if isinstance(executor, SimulatedExecutor):
            return executor.run(self, func, *args)
        if self.executor is not None:
            return self.executor.run(self, func, *args)
        raise self.refusal(
            f"a thread is wanted for {func!r}: use RpcService.run_blocking, or RpcService.executor"
        )

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run the whole simulation until *future*, which belongs to this process, is done."""
        __tracebackhide__ = True
        task = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self.scheduler.run_until(task)
        return task.result()

    def run_forever(self) -> None:
        self.scheduler.run_until(None)

    def stop(self) -> None:
        self.scheduler.stop()

    def is_running(self) -> bool:
        return self.scheduler.is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The end of the whole simulation."""
        self._is_closed = True
        self.scheduler.close()

    async def shutdown_asyncgens(self) -> None:
        """Those that are left are closed with everything else, after the run."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored: the simulation is its own debugger."""

    def get_task_factory(self) -> Any:
        return self._task_factory

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody awaits ends the run."""
        self.scheduler.unhandled(self, context)
