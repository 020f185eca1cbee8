"""Turns: how much work an operator does before mail, timers, cancellation and others get theirs.

A task works in portions of about ten milliseconds.  Batches are cut into portions before they reach
its first operator; timers fire in portions there, too, and what is left is *unfinished*: the task
goes on with it after it has looked for mail.  Deeper in a chain, where the operators above are in
the middle of a batch, and inside a record that has very many results, an operator *pauses*: only
other tasks and cancellation get a turn, and the results get room.  So it is while an operator
*waits* for another thread.
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
    """How many records, results or timers make a portion, by how long those before took.

    Where the time hardly depends on the number, as it does where a sink writes a batch at once,
    more are taken together, and not fewer: until it turns out to depend on it.

    Args:
        turn: the task's; while it is paused, others work.
        most: that make one in any case.
    """

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
        """Work begins; how much of it there may be."""
        self._begun = self._now()
        return self.size

    def end(self, done: int) -> int:
        """So much was done since :meth:`begin`; how much there may be next."""
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
        """Whether the last two portions differ by much, and their times by little."""
        (few, quick), (many, slow) = sorted(((done, taken), (self._done, self._taken)))
        return few > 0 and many >= 3 * few and slow < 2 * quick

    def of(self, count: int) -> Iterator[tuple[int, int]]:
        """*count* things in portions: begin and end of each."""
        at = 0
        while at < count:
            end = min(count, at + self.begin())
            yield at, end
            self.end(end - at)
            at = end


class Turn:
    """Of one task: whoever runs it says what pausing means."""

    def __init__(self) -> None:
        self.pause: Callable[[], None] = _go_on
        """Between two portions in the middle of a batch: returns when the task may go on."""
        self.paused = 0.0
        """Seconds that the task has been paused for, told by whoever runs it; waiting is none."""
        self.wait_until: Callable[[Callable[[], bool]], None] = _cannot_wait
        """In the middle of a batch: returns when the condition holds.  It is looked at whenever the
        task is woken; looking may put results out.  A portion takes that time, too: the next ones
        are smaller, and mail has its turn sooner."""
        self.is_waiting = False
        """For a condition: nothing that is due is done meanwhile."""
        self.wake: Callable[[], None] = _go_on
        """From any thread: the task, which may be waiting, has something to do."""
        self.post: Callable[[Callable[[], None]], None] = _cannot_post
        """From any thread: have something done between two portions, unless the task has ended."""
        self._unfinished: deque[Callable[[], None]] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether there is work that comes before the next element."""
        return bool(self._unfinished)

    def wake_up(self) -> None:
        """See :attr:`wake`, which whoever runs the task may set later."""
        self.wake()

    def leave(self, work: Callable[[], None]) -> None:
        """Go on with *work* after mail and timers had their turn, when there is room for results;
        for a task's first operator, and for mail."""
        self._unfinished.appendleft(work)

    def then(self, work: Callable[[], None]) -> None:
        """Do *work* when nothing is unfinished any more: now, if nothing is."""
        if self._unfinished:
            self._unfinished.append(work)
        else:
            work()

    def go_on(self) -> None:
        """Do one portion of what is unfinished."""
        self._unfinished.popleft()()


def _go_on() -> None:
    """Nobody else wants a turn."""


def _cannot_wait(condition: Callable[[], bool]) -> None:
    raise RuntimeError("an operator can wait only in a task")


def _cannot_post(mail: Callable[[], None]) -> None:
    raise RuntimeError("there is no task that could carry out mail")
