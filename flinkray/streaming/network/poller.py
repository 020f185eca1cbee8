"""Reads the connections of a process in the threads of its tasks.

A task handles what has arrived between two steps. While a task waits for work, it sleeps until its
signal is set or data arrives, and handles the data itself. So a batch reaches a waiting task
without a second thread. Only one thread sleeps at the sockets at a time: it has the *turn*. Other
waiting tasks (*followers*) sleep until their signals are set.

To be woken takes longer than to answer a small batch. So a task stays awake for some microseconds
before it sleeps, and gives the processor to whoever wants it. If nothing arrives in this time, the
task sleeps at once the next time, and after each further failure twice as often.

A helper thread takes the turn only if no task has looked at the sockets for some milliseconds: all
tasks are inside long calls of user code, or no task is left. The helper steps aside as soon as a
task looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import EPOLLIN, epoll
from typing import Final, Protocol

from flinkray.streaming.network.signal import Signal

STALL: Final = 0.005
"""Seconds without a task at the sockets after which the helper reads them."""

POLL_INTERVAL: Final = 0.0005
"""Least seconds between two looks at the sockets by tasks that are not waiting."""

AWAKE: Final = 0.0001
"""Seconds for which a task looks at the sockets again and again before it sleeps."""

_MOST_DOUBLINGS: Final = 7
"""If nothing arrives in :data:`AWAKE` seconds, tasks sleep at once 1, 3, 7, ... times, and at most
2 to this power, less one."""

LONGEST_SLEEP: Final = 3600.0
"""Most seconds of one sleep at the sockets: epoll takes no more than 24 days."""

_MOST_EVENTS: Final = 64
"""Most sockets that one look reports. Later looks report the others."""


class Polled(Protocol):
    """Interface of a connection whose socket a :class:`Poller` watches."""

    def fileno(self) -> int: ...

    def read_available(self) -> bool:
        """Handle all that has arrived, without blocking. Return False if the connection ended."""

    def close_socket(self) -> None:
        """Close the socket. Called once, in the thread that reads, after the connection ended."""


class Poller:
    """Watches the sockets of one process. Thread-safe, except that :meth:`poll` and :meth:`wait`
    must not be called with locks of channels held. *name*: name of the process, for its helper
    thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoll = epoll()
        self._woken, self._waker = os.pipe()
        self._has_pipe = True
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._epoll.register(self._woken, EPOLLIN)
        self._sockets: dict[int, Polled] = {}
        """Watched connections, by the number of the socket."""
        self._added: deque[int] = deque()
        """Sockets of new connections, to be read once without an event: data may have been received
        with the end of a handshake."""
        self._lock = threading.Lock()
        """Lock on the set of sockets, and on the pipe."""
        self._reading = threading.Lock()
        """Held by the thread that reads."""
        self._turn = threading.Lock()
        """Held by the thread that sleeps until something arrives."""
        self.sleeper: PollingSignal | None = None
        """Signal of the task that has the turn and sleeps, or is about to. Whoever sets this signal
        calls :meth:`wake`."""
        self._failures = 0
        """How often in a row nothing has arrived in :data:`AWAKE` seconds."""
        self._sleeps_at_once = 0
        """How often tasks sleep at once before one stays awake again."""
        self._followers: deque[PollingSignal] = deque()
        """Signals of threads that wait and do not have the turn."""
        self._looks = 0
        """How often tasks have looked at the sockets."""
        self._poll_at = 0.0
        self._helper: threading.Thread | None = None
        self._helper_looks = Signal()
        self._is_helper_parked = False
        """Whether the helper waits until a task gives the turn back."""
        self._is_helping = False
        self._is_aside_wanted = False
        self._is_closed = False

    # --- for connections ----------------------------------------------------------------------

    def add(self, polled: Polled) -> None:
        """Watch a connection until it ends. Raises RuntimeError: no thread can be started."""
        with self._lock:
            if self._helper is None:
                helper = threading.Thread(
                    target=self._help, name=f"exchange {self._name}", daemon=True
                )
                helper.start()
                self._helper = helper
            number = polled.fileno()
            self._sockets[number] = polled
            self._epoll.register(number, EPOLLIN)
        self._added.append(number)
        self.wake()

    def close(self) -> None:
        """Stop reading, and close the sockets of all connections, which must have ended."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.wake()
        self._helper_looks.set()
        if self._helper is not None:
            self._helper.join()
        with self._turn, self._reading, self._lock:
            for polled in self._sockets.values():
                polled.close_socket()
            self._sockets.clear()
            self._epoll.close()
            os.close(self._woken)
            os.close(self._waker)
            self._has_pipe = False

    # --- for tasks ----------------------------------------------------------------------------

    def poll(self) -> None:
        """Handle what has arrived, without waiting, unless another task reads just now."""
        now = time.monotonic()
        if now < self._poll_at or not self._sockets:
            return
        self._poll_at = now + POLL_INTERVAL
        self._looks += 1
        if self._reading.acquire(False):
            try:
                if not self._is_closed:
                    self._handle(self._epoll.poll(0, _MOST_EVENTS), False)
            finally:
                self._reading.release()
        if self._is_helping:
            self._ask_aside()

    def wait(self, signal: PollingSignal, timeout: float) -> bool:
        """Wait for a signal, and handle what arrives meanwhile, unless another thread does. Returns
        whether the signal was set."""
        if not self._sockets or not self._turn.acquire(False):
            return self._follow(signal, timeout)
        deadline = None if timeout < 0 else time.monotonic() + timeout
        try:
            while not self._is_closed:
                self.sleeper = signal  # from here on, whoever sets the signal wakes this thread
                if signal.take():
                    return True
                if deadline is None:
                    self._sleep(LONGEST_SLEEP, self._sleeps_at_once == 0)
                    continue
                # Also a wait of no time reads: the helper leaves the sockets to threads that wait.
                rest = min(max(deadline - time.monotonic(), 0.0), LONGEST_SLEEP)
                self._sleep(rest, self._sleeps_at_once == 0 and rest > AWAKE)
                if time.monotonic() >= deadline:
                    return signal.take()
        finally:
            self.sleeper = None
            self._looks += 1
            self._turn.release()  # to nobody: this thread looks again after its step
            if self._is_helper_parked:
                self._helper_looks.set()
        return signal.wait_only(-1 if deadline is None else max(deadline - time.monotonic(), 0))

    def _follow(self, signal: PollingSignal, timeout: float) -> bool:
        self._followers.append(signal)
        if self._is_helping:
            self._ask_aside()
        was_set = signal.wait_only(timeout)
        with suppress(ValueError):  # the helper has removed it
            self._followers.remove(signal)
        return was_set

    def wake(self) -> None:
        with self._lock, suppress(BlockingIOError):  # a full pipe wakes the thread, too
            if self._has_pipe:
                os.write(self._waker, b"\0")

    # --- what has arrived ------------------------------------------------------------------------

    def _sleep(self, timeout: float, stays_awake: bool) -> None:
        """Wait until something arrives, and handle it. Ends early at a wake-up, or after *timeout*
        seconds. *stays_awake*: at first for :data:`AWAKE` seconds. The turn is held."""
        events = self._stay_awake() if stays_awake else []
        if not events:
            if self._sleeps_at_once:
                self._sleeps_at_once -= 1
            events = self._epoll.poll(timeout, _MOST_EVENTS)
        self.sleeper = None
        with self._reading:
            self._handle(events, True)

    def _stay_awake(self) -> list[tuple[int, int]]:
        until = time.monotonic() + AWAKE
        while not (events := self._epoll.poll(0, _MOST_EVENTS)) and time.monotonic() < until:
            os.sched_yield()
        if events:
            self._failures = 0
        else:
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self._sleeps_at_once = 2**self._failures
        return events

    def _handle(self, events: list[tuple[int, int]], has_turn: bool) -> None:
        for number, _ in events:
            if number != self._woken:
                self._read(number)
            elif has_turn:  # otherwise the thread that sleeps would miss the wake-up
                os.read(self._woken, 4096)
        while self._added:
            self._read(self._added.popleft())

    def _read(self, number: int) -> None:
        polled = self._sockets.get(number)
        if polled is None or polled.read_available():
            return
        with self._lock, suppress(OSError):  # the socket is closed already
            del self._sockets[number]
            self._epoll.unregister(number)
        polled.close_socket()

    # --- the helper ---------------------------------------------------------------------------

    def _help(self) -> None:
        while not self._is_closed:
            looks = self._looks
            if self._turn.acquire(False):
                self._read_for_tasks()
            else:
                self._is_helper_parked = True
                if self._turn.locked():
                    self._helper_looks.wait()
                self._is_helper_parked = False
            while True:
                self._helper_looks.wait(STALL)
                if looks == self._looks or self._is_closed:
                    break
                looks = self._looks

    def _read_for_tasks(self) -> None:
        """Read until a task asks for the turn. If a task waits, it gets the turn."""
        self._is_aside_wanted = False
        self._is_helping = True
        try:
            while not (self._is_aside_wanted or self._followers or self._is_closed):
                self._sleep(LONGEST_SLEEP, False)
        finally:
            self._is_helping = False
            self._turn.release()
        with suppress(IndexError):  # no task waits
            self._followers.popleft().set()

    def _ask_aside(self) -> None:
        if not self._is_aside_wanted:
            self._is_aside_wanted = True
            self.wake()


class PollingSignal(Signal):
    """A signal of a task: the thread that waits for the signal also reads the connections of its
    process. :meth:`wait` may return early."""

    __slots__ = ("_poller", "take")

    def __init__(self, poller: Poller) -> None:
        super().__init__()
        self._poller = poller
        self.take: Callable[[], bool] = partial(self._lock.acquire, False)
        """Returns whether the signal is set, and clears it."""

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # it is set already, and who has set it wakes the thread
        if self._poller.sleeper is self:
            self._poller.wake()

    def wait(self, timeout: float = -1) -> bool:
        return self.take() or self._poller.wait(self, timeout)

    def poll(self) -> None:
        self._poller.poll()

    def wait_only(self, timeout: float) -> bool:
        """Wait without reading."""
        return super().wait(timeout)
