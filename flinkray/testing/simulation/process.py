"""Simulates a process: an event loop of its own, which the scheduler of the simulation serves."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from enum import Enum
from heapq import heappush
from typing import Any, Protocol, TypeVar
from weakref import ref

from flinkray.testing.simulation.blocking import SimulatedExecutor
from flinkray.testing.simulation.dead_processes import Graveyard
from flinkray.testing.simulation.errors import ForbiddenInSimulationError
from flinkray.testing.simulation.forbidden import call_site

T = TypeVar("T")

_FEW_TASKS = 32


def _forbidden(name: str) -> Callable[..., Any]:
    def refuse(self: UnrealLoop, *args: Any, **kwargs: Any) -> Any:
        raise self.refusal(f"{name} of its event loop is called, and nothing real can be reached")

    return refuse


class UnrealLoop(asyncio.AbstractEventLoop):
    """Base of event loops that refuse sockets, pipes, signals and other processes."""

    is_unreal = True
    """For RPC services: no thread can be started."""

    @abstractmethod
    def refusal(self, what: str) -> ForbiddenInSimulationError:
        """Return the error to raise for the forbidden call *what*. The run ends with this error
        even if the program catches it."""

    set_default_executor: Any = _forbidden("set_default_executor")
    getaddrinfo: Any = _forbidden("getaddrinfo")
    getnameinfo: Any = _forbidden("getnameinfo")
    create_connection: Any = _forbidden("create_connection")
    create_server: Any = _forbidden("create_server")
    start_tls: Any = _forbidden("start_tls")
    create_unix_connection: Any = _forbidden("create_unix_connection")
    create_unix_server: Any = _forbidden("create_unix_server")
    connect_accepted_socket: Any = _forbidden("connect_accepted_socket")
    create_datagram_endpoint: Any = _forbidden("create_datagram_endpoint")
    sendfile: Any = _forbidden("sendfile")
    connect_read_pipe: Any = _forbidden("connect_read_pipe")
    connect_write_pipe: Any = _forbidden("connect_write_pipe")
    subprocess_shell: Any = _forbidden("subprocess_shell")
    subprocess_exec: Any = _forbidden("subprocess_exec")
    add_reader: Any = _forbidden("add_reader")
    remove_reader: Any = _forbidden("remove_reader")
    add_writer: Any = _forbidden("add_writer")
    remove_writer: Any = _forbidden("remove_writer")
    sock_recv: Any = _forbidden("sock_recv")
    sock_recv_into: Any = _forbidden("sock_recv_into")
    sock_recvfrom: Any = _forbidden("sock_recvfrom")
    sock_recvfrom_into: Any = _forbidden("sock_recvfrom_into")
    sock_sendall: Any = _forbidden("sock_sendall")
    sock_sendto: Any = _forbidden("sock_sendto")
    sock_connect: Any = _forbidden("sock_connect")
    sock_accept: Any = _forbidden("sock_accept")
    sock_sendfile: Any = _forbidden("sock_sendfile")
    add_signal_handler: Any = _forbidden("add_signal_handler")
    remove_signal_handler: Any = _forbidden("remove_signal_handler")


class ProcessState(Enum):
    """The state of a process in the simulated operating system."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Stopped as by SIGSTOP: alive, but unresponsive."""
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
    """Interface to the scheduler, for its processes. Implemented by
    :class:`~flinkray.testing.simulation.scheduler.Scheduler`."""

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
    """The event loop of a simulated process. The scheduler chooses when a callback runs; callbacks
    of one process run in the order in which they became ready. Once the process is dead, none of
    its code ever runs again, not even a ``finally``."""

    def __init__(self, scheduler: Serving, name: str, number: int, node: str) -> None:
        """Create a process. Only :meth:`Scheduler.new_process` calls this."""
        self.scheduler = scheduler
        self.name = name
        """The name of the process in the network.

        Several processes may have the name in succession.
        """
        self.kind = name.partition("-")[0]
        """The beginning of the name: ``TaskExecutor`` of ``TaskExecutor-7``."""
        self.number = number
        """The number of the process; never used twice in a run."""
        self.node = node
        self.state = ProcessState.RUNNING
        self.context = Context()
        """Callbacks that are started in the process from outside run in copies of this context."""
        self.simulation: object = None
        """The :class:`~flinkray.testing.simulation.simulation.Simulation` of the process."""
        self.executor: SimulatedExecutor | None = None
        """Does the work of every executor; None: only a :class:`SimulatedExecutor` is allowed."""
        self.clock_error = 0.0
        """The error of the process's wall clock in seconds."""
        self.blocking_cost = 0.0
        """For disks: additional seconds that the running blocking work takes."""
        self.step_cost = 0.0
        """Virtual seconds that each callback takes; above zero on a slow process."""
        self.steps_left: int | None = None
        """After how many more callbacks the process is killed; None: it is not killed."""
        self.exit_code: str | None = None
        """Why the process is dead, or will be killed; None: neither."""
        self.ready: deque[Handle | Timer] = deque()
        self.is_listed = False
        """For the scheduler: whether the process is listed as runnable."""
        self.has_started = False
        """Whether the starter of the process knows that its endpoint exists."""
        self.is_banished = False
        """Whether the process is taken for dead while it lives."""
        self.is_frozen = False
        """Whether the process is stopped forever."""
        self.is_special = False
        """For the scheduler: whether :meth:`after_step` must be called after each step."""
        self._is_busy = False
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._look_at_tasks = _FEW_TASKS
        """The number of tasks above which finished tasks are removed from the list."""
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
        """Register a function that is called, outside of any process, when this process dies."""
        self._death_listeners.append(listener)

    def die(self, reason: str) -> None:
        """End the process as by SIGKILL: the present callback runs to its end, and no later one
        runs."""
        if self.state is ProcessState.DEAD:
            return
        self.state = ProcessState.DEAD
        self.exit_code = reason
        self.scheduler.bury(self)
        for listener in self._death_listeners:
            listener()

    def die_after(self, steps: int, reason: str) -> None:
        """Let the process run *steps* more callbacks, then kill it."""
        self.steps_left = steps
        self.exit_code = reason
        self.is_special = True

    def spare(self) -> None:
        """Take back :meth:`die_after`: the process is not killed."""
        self.steps_left = self.exit_code = None
        self.is_special = self.step_cost > 0

    def stop_serving(self) -> None:
        """Stop the process as by SIGSTOP, until :meth:`resume`."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.STOPPED
            self.scheduler.unlist(self)

    def freeze(self) -> None:
        """Stop the process for good, as by SIGSTOP; :meth:`resume` then has no effect."""
        self.is_frozen = True
        self.stop_serving()

    def resume(self) -> None:
        """Continue the process as by SIGCONT; callbacks that became ready meanwhile run now."""
        if self.state is ProcessState.STOPPED and not self.is_frozen:
            self.state = ProcessState.RUNNING
            self._list()

    def slow_down(self, step_cost: float) -> None:
        """Make each callback take *step_cost* virtual seconds from now on; 0: no time."""
        self.step_cost = step_cost
        self.is_special = step_cost > 0 or self.steps_left is not None

    def after_step(self) -> None:
        """Called by the scheduler after each callback of a process with :attr:`is_special`: kills
        the process if :meth:`die_after` says so, and makes it busy for the time that a callback
        takes."""
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
        """Add a callback to those that are ready to run. A timer must be due."""
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
        """Run *callback* in this process in *delay* seconds, unless it is dead by then."""
        when = self.scheduler.now + delay
        self.post_at(when, context or self.context.copy(), callback, *args)

    def post_at(
        self, when: float, context: Context, callback: Callable[..., object], *args: Any
    ) -> None:
        """Run *callback* in this process at the time *when* of the scheduler's clock, unless the
        process is dead by then."""
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
        """Return the unfinished tasks of the process's event loop, oldest first."""
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
        """End the whole simulation."""
        self._is_closed = True
        self.scheduler.close()

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: asynchronous generators are closed with everything else, after the run."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing, because there is no default executor."""

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore the debug mode, which a simulation does not need."""

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
        """End the run because of an exception that no code awaits."""
        self.scheduler.unhandled(self, context)
