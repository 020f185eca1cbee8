"""Simulates the threads of a process: each step of a thread is a callback of the process.

A thread's code runs on its own stack (a greenlet) until it waits for a :class:`StepSignal` or for
time to pass; then other threads and callbacks run, and a seed decides when the code continues.
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
    """A simulated thread that runs *function*, which must not raise. It begins in the next turn of
    *process*."""

    def __init__(
        self, process: SimulatedProcess, function: Callable[[], object], random: Random
    ) -> None:
        self.process = process
        self.random = random
        self.before_disk: Callable[[], None] | None = None
        """Called before each operation on a disk; None: nothing is called."""
        self._stack = _Stack(function)
        self._stack.thread = self
        self._is_waiting = True
        self._waits = 0
        """How many times the thread has waited; a wake-up for an earlier wait has no effect."""
        process.call_soon(self._go_on, 0)

    @staticmethod
    def current() -> StepThread | None:
        """Return the simulated thread that runs now. None: the code runs in no simulated thread."""
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
        """Let the thread continue if it is in :meth:`wait`; otherwise do nothing."""
        if self._is_waiting:
            self.process.call_soon(self._go_on, self._waits)

    def wait(self, seconds: float | None = None) -> None:
        """Pause this thread until :meth:`wake`, at most *seconds* virtual seconds (None: no limit).

        Called in the thread itself.
        """
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
        """Pause this thread until other threads and callbacks have run. Called in the thread
        itself.
        """
        self.wait(0.0)

    def unwind(self) -> None:
        """End the thread after the run, by an exception on its stack, which runs its ``finally``
        blocks. The thread's code may ignore the exception."""
        self._is_waiting = False
        if self._stack and not self._stack.dead:
            self._stack.parent = getcurrent()
            try:
                self._stack.throw(GreenletExit)
            except (Exception, ProcessDied):  # noqa: BLE001 - the program is over
                return


class StepThreads:
    """Starts the simulated threads of one process."""

    def __init__(self, process: SimulatedProcess, random: Random) -> None:
        self._process = process
        self._random = random
        self._threads: list[StepThread] = []
        process.on_death(self._bury)

    def begin(self, function: Callable[[], object]) -> StepThread:
        """Start a new thread that runs *function*, and return it."""
        thread = StepThread(self._process, function, self._random)
        self._threads = [known for known in self._threads if not known.has_ended]
        self._threads.append(thread)
        return thread

    def _bury(self) -> None:
        """Keep the stacks of a dead process until the run ends: Python would unwind them, which
        runs ``finally`` blocks of a dead process."""
        for thread in self._threads:
            self._process.scheduler.graveyard.keep_stack(thread)


class StepSignal(Signal):
    """A signal that one thread of a simulated process waits for."""

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
    """Pause the calling simulated thread for a random time of at most *longest* virtual seconds.
    *share*: the probability of a pause; if *longest* is above 0.01, there is always one. Does
    nothing outside of a simulated thread."""
    thread: Any = StepThread.current()
    if thread is not None and (longest > 0.01 or thread.random.random() < share):
        thread.wait(longest * thread.random.random())
