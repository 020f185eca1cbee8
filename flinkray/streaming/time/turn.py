"""Turns: how much work an operator does before mail, timers and cancellation have their turn.

A task works in portions of about ten milliseconds. Batches are cut into portions before they reach
the task's first operator. Timers of this operator fire in portions, too. The work that is left is
*unfinished*: the task does it after it has looked for mail. An operator further down the chain is
called in the middle of a batch. In such a call, and inside a record with very many results, an
operator *pauses*: only other tasks and cancellation get a turn, and readers make room for results.
The same holds while an operator *waits* for another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from flinkray.core.clock import Clock

TARGET = 0.01
"""Seconds that a portion should take."""

_FIRST = 16
_FACTOR = 4


class Portion:
    """Determines how many records, results or timers an operator processes before other work has
    its turn: as many as take about ten milliseconds, at most *most*, as measured with earlier
    portions (pauses of the task do not count). If the time hardly depends on the number, for
    example because a sink writes a batch at once, portions grow until it does."""

    __slots__ = (
        "_begun",
        "_done",
        "_flat",
        "_least",
        "_monotonic",
        "_most",
        "_taken",
        "_turn",
        "size",
    )

    def __init__(self, clock: Clock, turn: Turn | None = None, most: int = 4096) -> None:
        self._monotonic = clock.monotonic
        self._turn = turn or Turn()
        self._most = most
        self._least = 1
        self._flat = 0.0
        self._begun = self._taken = 0.0
        self._done = 0
        self.size = min(_FIRST, most)

    def _now(self) -> float:
        return self._monotonic() - self._turn.paused

    def begin(self) -> int:
        """Begin a portion. Returns the number of items that it may consist of."""
        self._begun = self._now()
        return self.size

    def end(self, done: int) -> int:
        """Note that *done* items of the portion were processed, and begin the next portion. Returns
        the number of items that the next one may consist of."""
        now = self._now()
        taken = now - self._begun
        self._begun = now
        if taken <= TARGET:
            if done >= self.size < self._most and taken < TARGET / _FACTOR:
                self.size = min(self._most, self.size * _FACTOR)
        elif self._is_flat(done, taken):
            self.size = self._least = min(self._most, max(done, self._done) * _FACTOR)
            self._flat = max(taken, self._taken)
        else:
            if taken > _FACTOR * self._flat:
                self._least = 1
            self.size = max(self._least, min(self.size, done) // _FACTOR)
        self._done, self._taken = done, taken
        return self.size

    def _is_flat(self, done: int, taken: float) -> bool:
        """Return whether the time of a portion hardly depends on its size: the last two portions
        differ much in size, and little in time."""
        (few, quick), (many, slow) = sorted(((done, taken), (self._done, self._taken)))
        return few > 0 and many >= 3 * few and slow < 2 * quick

    def of(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of one portion after another, together *count* items. The time until
        the caller asks for the next portion determines its size."""
        at = 0
        while at < count:
            end = min(count, at + self.begin())
            yield at, end
            self.end(end - at)
            at = end


class Turn:
    """Lets the operators of one task interrupt their work for mail, timers and other tasks, and
    keeps the work that they have left unfinished. The runner of the task sets how the task pauses,
    waits and is woken."""

    def __init__(self) -> None:
        self.pause: Callable[[], None] = _go_on
        """Called between two portions in the middle of a batch.
        Returns when the task may continue."""
        self.paused = 0.0
        """Seconds for which the task was paused so far; set by its runner. Waits do not count."""
        self.wait_until: Callable[[Callable[[], bool]], None] = _cannot_wait
        """Called in the middle of a batch with a condition. Returns when the condition holds.
        The condition is checked whenever the task is woken; the check may put results out. The wait
        counts as time of the portion: the next portions are smaller, and mail has its turn sooner.
        """
        self.is_waiting = False
        """Whether the task waits for a condition. Due callbacks do not run then."""
        self.wake: Callable[[], None] = _go_on
        """Wakes the task, which may be waiting, because there is work; from any thread."""
        self.post: Callable[[Callable[[], None]], None] = _cannot_post
        """Takes a function, which the task runs between two portions; from any thread.
        If the task has ended, the function is dropped."""
        self._unfinished: deque[Callable[[], None]] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether there is unfinished work, which has to be done before the next element."""
        return bool(self._unfinished)

    def wake_up(self) -> None:
        """Wake the task by calling :attr:`wake`. This method can be passed on before the runner of
        the task has set *wake*."""
        self.wake()

    def leave(self, work: Callable[[], None]) -> None:
        """Put *work* in front of the unfinished work, which the task does after mail and timers,
        when results have room. Only for the first operator of a task and for mail."""
        self._unfinished.appendleft(work)

    def then(self, work: Callable[[], None]) -> None:
        """Do *work* now; or, if there is unfinished work, after the unfinished work."""
        if self._unfinished:
            self._unfinished.append(work)
        else:
            work()

    def go_on(self) -> None:
        """Do the first piece of the unfinished work, which may :meth:`leave` more work."""
        self._unfinished.popleft()()


def _go_on() -> None:
    """Do nothing: no other task needs a turn, and no thread has to be woken."""


def _cannot_wait(condition: Callable[[], bool]) -> None:
    raise RuntimeError("an operator can wait only in a task")


def _cannot_post(mail: Callable[[], None]) -> None:
    raise RuntimeError("there is no task that could carry out mail")
