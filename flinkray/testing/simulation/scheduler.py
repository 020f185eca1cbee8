"""Chooses which simulated process runs next, and holds virtual time."""

from __future__ import annotations

import asyncio
import gc
import threading
from asyncio import events
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any

from flinkray.testing.simulation.dead_processes import Graveyard
from flinkray.testing.simulation.errors import (
    LivelockError,
    NothingWillHappenError,
    ProcessDied,
    UnhandledError,
)
from flinkray.testing.simulation.forbidden import nothing_real
from flinkray.testing.simulation.process import ProcessState, SimulatedProcess, Timer
from flinkray.testing.simulation.trace import SimulationStory, Trace

STEPS_WITHOUT_TIME = 1_000_000
"""How many callbacks may run at one instant until the program counts as being in a livelock."""
_COLLECT_EVERY = 300_000
"""Steps between two garbage collections: at fixed steps, so that every run is the same."""
_FEW_TIMERS = 1000


class Scheduler:
    """Runs the processes of one run: one callback at a time, of a process that the seed chooses.
    Virtual time does not advance while any process can run; then it jumps to the next timer."""

    def __init__(
        self, random: Random, *, limit: float = inf, story: SimulationStory | None = None
    ) -> None:
        """Make a scheduler whose clock is at 0 and that has no processes. *limit*: virtual seconds
        after which the run fails, because it waits in vain. *story*: gets the lines of the run's
        log."""
        self.now = 0.0
        self.limit = limit
        self.steps = 0
        """The number of callbacks that ran so far."""
        self.trace = Trace()
        self.story = story or SimulationStory(1000)
        self.graveyard = Graveyard()
        self.heap: list[tuple[float, int, Timer | Callable[[], object]]] = []
        self.next_number = count(1).__next__
        self.runnable: list[SimulatedProcess] = []
        """Processes that have a callback to run; their order has no meaning."""
        self.processes: list[SimulatedProcess] = []
        """The living processes, oldest first."""
        self.current: SimulatedProcess | None = None
        """The process that runs now, or ran last."""
        self.thread = threading.get_ident()
        self.is_running = False
        self.checks: list[Callable[[], object]] = []
        """Called after each step; an exception in them ends the run."""
        self._draw = random.random
        self._numbers = count(1)
        self._cancelled_timers = 0
        self._is_stopping = False
        self._failure: BaseException | None = None
        self.is_closed = False

    # --- processes ------------------------------------------------------------------------------

    def new_process(self, name: str, node: str = "") -> SimulatedProcess:
        process = SimulatedProcess(self, name, next(self._numbers), node)
        self.processes.append(process)
        return process

    def unlist(self, process: SimulatedProcess) -> None:
        """Remove a process from those that the scheduler may run, because it cannot run now."""
        if process.is_listed:
            process.is_listed = False
            self.runnable.remove(process)

    def bury(self, process: SimulatedProcess) -> None:
        """Remove a process that has died. Its objects are kept until the run is over."""
        self.unlist(process)
        self.processes.remove(process)
        keep = self.graveyard.keep
        keep(process)
        for task in process.tasks():
            keep(task)

    # --- time -----------------------------------------------------------------------------------

    def at(self, when: float, callback: Callable[[], object]) -> None:
        """Call *callback* at the time *when* of the clock, outside of any process."""
        heappush(self.heap, (when, self.next_number(), callback))

    def timer_cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _FEW_TIMERS and 2 * self._cancelled_timers > len(self.heap):
            self._cancelled_timers = 0
            self.heap[:] = [
                entry
                for entry in self.heap
                if not (isinstance(entry[2], Timer) and entry[2]._cancelled)
            ]
            heapify(self.heap)

    def _advance(self) -> None:
        heap = self.heap
        dead = ProcessState.DEAD
        while heap:
            when, _, due = heap[0]
            if type(due) is Timer:
                if due._cancelled:
                    heappop(heap)
                    continue
                if due.process.state is dead:
                    heappop(heap)
                    self.graveyard.keep(due)
                    continue
            break
        else:
            raise NothingWillHappenError(
                f"at {self.now:g} s every process waits, and no timer is set"
                f"{self._who_is_stopped()}"
            )
        if when > self.now:
            if when > self.limit:
                raise NothingWillHappenError(
                    f"nothing has come of waiting until {self.limit:g} s{self._who_is_stopped()}"
                )
            self.now = when
            self.trace.append(when)
            self.trace.fold()
        now = self.now
        while heap and heap[0][0] <= now:
            _, _, due = heappop(heap)
            if type(due) is not Timer:
                due()  # type: ignore[operator]
            elif not due._cancelled:
                due.process.enqueue(due)

    def _who_is_stopped(self) -> str:
        stopped = [p.name for p in self.processes if p.state is ProcessState.STOPPED]
        return f"; stopped: {', '.join(stopped)}" if stopped else ""

    # --- running --------------------------------------------------------------------------------

    def run_until(self, future: asyncio.Future[Any] | None) -> None:
        """Run callbacks of all processes until *future* is done or :meth:`stop` is called."""
        __tracebackhide__ = True
        self._is_stopping = False
        if future is not None:
            if future.done():
                return
            future.add_done_callback(lambda _: self.stop())
        before = events._get_running_loop()
        if before is not None:
            raise RuntimeError("a simulation cannot run inside of a running event loop")
        was_enabled = gc.isenabled()
        gc.disable()  # garbage is collected at fixed steps
        self.thread = threading.get_ident()
        self.is_running = True
        try:
            with nothing_real(self.fail):
                self._serve()
        finally:
            self.is_running = False
            events._set_running_loop(None)
            if was_enabled:
                gc.enable()

    def stop(self) -> None:
        """Make :meth:`run_until` return after the current step."""
        self._is_stopping = True

    def fail(self, error: BaseException) -> None:
        """Make the run end with *error* after the present step. If this is called several times,
        only the first error counts."""
        if self._failure is None:
            self._failure = error
        self._is_stopping = True

    def unhandled(self, process: SimulatedProcess, context: dict[str, Any]) -> None:
        if self.is_closed or not process.is_alive:
            return
        cause = context.get("exception")
        error = UnhandledError(f"{process.name}: {context.get('message')}: {cause!r}")
        error.__cause__ = cause
        self.fail(error)

    def _serve(self) -> None:
        __tracebackhide__ = True
        runnable, checks, draw, trace = self.runnable, self.checks, self._draw, self.trace.append
        steps = self.steps
        limit = steps + STEPS_WITHOUT_TIME
        collect_at = steps + _COLLECT_EVERY
        loop: SimulatedProcess | None = None
        try:
            while not self._is_stopping:
                if not runnable:
                    now = self.now
                    self._advance()
                    if self.now > now:
                        limit = steps + STEPS_WITHOUT_TIME
                    continue
                number = len(runnable)
                index = 0 if number == 1 else int(draw() * number)
                process = runnable[index]
                handle = process.ready.popleft()
                if not process.ready:
                    process.is_listed = False
                    last = runnable.pop()
                    if last is not process:
                        runnable[index] = last
                if handle._cancelled:
                    continue
                if process is not loop:
                    events._set_running_loop(process)
                    loop = self.current = process
                steps += 1
                self.steps = steps
                trace(process.number)
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except ProcessDied:
                    pass
                except BaseException as error:  # noqa: BLE001 - the loop's user decides
                    process.call_exception_handler(
                        {"message": f"exception in {handle!r}", "exception": error}
                    )
                if process.is_special:
                    process.after_step()
                if checks:
                    for check in checks:
                        check()
                if steps >= limit:
                    raise LivelockError(
                        f"{STEPS_WITHOUT_TIME} callbacks ran at {self.now:g} s, and no time passes"
                    )
                if steps >= collect_at:
                    collect_at = steps + _COLLECT_EVERY
                    gc.collect(0)
        finally:
            self.current = None
        if self._failure is not None:
            raise self._failure

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the run: kill all processes, and close their coroutines."""
        if self.is_closed:
            return
        self.is_closed = True
        for process in tuple(self.processes):
            process.die("the simulation is over")
        for _, _, due in self.heap:
            self.graveyard.keep(due)
        self.heap.clear()
        self.graveyard.close()
