"""Threads of a simulated process: each step of one is a callback of the process.

What runs in a thread elsewhere, and waits there in the middle of a call, runs here on a stack of
its own (a greenlet).  It goes on until it waits, for a :class:`StepSignal` or for time to pass;
then others have their turns, and a seed decides when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from flinkray.streaming.network import Signal
from flinkray.testing.simulation.errors import ProcessDied
from flinkray.testing.simulation.process import SimulatedProcess


class _Stack(greenlet):
    thread: StepThread


class StepThread:
    """Runs *function*, which must not raise, from the next turn of *process* on."""

    def __init__(
        self, process: SimulatedProcess, function: Callable[[], object], random: Random
    ) -> None:
        self.process = process
        self.random = random
        self._stack = _Stack(function)
        self._stack.thread = self
        self._is_waiting = True
        self._waits = 0
        """So many times it has waited: what wakes it later than that is too late."""
        process.call_soon(self._go_on, 0)

    @staticmethod
    def current() -> StepThread | None:
        """The one that runs; None: the process itself does."""
        stack = getcurrent()
        return stack.thread if isinstance(stack, _Stack) else None

    @property
    def has_ended(self) -> bool:
        return self._stack.dead

    def _go_on(self, waits: int) -> None:
        if self._is_waiting and waits == self._waits:
            self._is_waiting = False
            self._stack.parent = getcurrent()
            self._stack.switch()

    def wake(self) -> None:
        """Have it go on, if it waits."""
        if self._is_waiting:
            self.process.call_soon(self._go_on, self._waits)

    def wait(self, seconds: float | None = None) -> None:
        """In the thread: until :meth:`wake`, or for so many virtual seconds."""
        if not self.process.is_alive:
            raise GreenletExit
        self._waits += 1
        self._is_waiting = True
        timer = None
        if seconds is not None:
            timer = self.process.call_later(seconds, self._go_on, self._waits)
        hub = self._stack.parent
        assert hub is not None
        hub.switch()
        if timer is not None:
            timer.cancel()

    def give_way(self) -> None:
        """In the thread: let others go on first."""
        self.wait(0.0)

    def unwind(self) -> None:
        """The run is over: end the stack, as far as it lets itself be ended."""
        self._is_waiting = False
        if self._stack and not self._stack.dead:
            self._stack.parent = getcurrent()
            try:
                self._stack.throw(GreenletExit)
            except (Exception, ProcessDied):  # noqa: BLE001 - of a program that is over
                return


class StepThreads:
    """Those of one process."""

    def __init__(self, process: SimulatedProcess, random: Random) -> None:
        self._process = process
        self._random = random
        self._threads: list[StepThread] = []
        process.on_death(self._bury)

    def begin(self, function: Callable[[], object]) -> StepThread:
        """A new one."""
        thread = StepThread(self._process, function, self._random)
        self._threads = [known for known in self._threads if not known.has_ended]
        self._threads.append(thread)
        return thread

    def _bury(self) -> None:
        """A stack that nobody holds is unwound by Python, and acts by that."""
        for thread in self._threads:
            self._process.scheduler.graveyard.keep_stack(thread)


class StepSignal(Signal):
    """What one thread of a simulated process waits for."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: StepThread | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            self._waiting.wake()

    def wait(self, timeout: float = -1) -> bool:
        thread = StepThread.current()
        assert thread is not None, "only a thread waits for a signal"
        if not self._is_set:
            self._waiting = thread
            thread.wait(None if timeout < 0 else timeout)
            self._waiting = None
        was_set, self._is_set = self._is_set, False
        return was_set


def pause_thread(longest: float, share: float = 1.0) -> None:
    """Blocking work that a thread is at takes up to so many virtual seconds, in that share of the
    cases.  Where no thread runs, nothing happens."""
    thread: Any = StepThread.current()
    if thread is not None and (longest > 0.01 or thread.random.random() < share):
        thread.wait(longest * thread.random.random())
