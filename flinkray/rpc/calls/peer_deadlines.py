"""Deadlines after which a process takes a peer for dead; time it stood still does not count.

A process stands still when it is stopped, its machine is suspended, or a callback takes long. Then
it is late for all of its deadlines, and answers may lie unread in its sockets. So:

- *The time in which the process stood still does not count.*  A timer, the *look*, measures that
  time by being late.  There is a look when a quarter of what is left of the nearest deadline has
  passed, so a stall of any length costs a deadline at most a quarter of what was left.
- *After a stall nothing expires at once*, but only when the unread input has been handled: for as
  long as the process stood still, at most :data:`LONGEST_RESPITE`, and not before a look that is
  on time.  While much input is handled, looks are late.

So a deadline never passes early, and passes exactly on time if the process did not stand still. A
dead peer is found all the same: each look uses up some of the remaining time, and a deadline that
has passed is postponed at most :data:`RESPITES` times.

Each process has one object for all of its deadlines (:meth:`RpcEndpoint.schedule_deadline`). For
work that only has to happen *later*, and takes no peer for dead, use an ordinary timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from math import inf
from typing import Any, TypeVar

from flinkray.rpc.calls.call_context import outside_of_handler
from flinkray.rpc.calls.deadlines import DeadlineHeap, Expirable
from flinkray.rpc.time_limit import retrieve, within

T = TypeVar("T")

PUNCTUAL = 0.05
"""Seconds. A look that is late by less is not a stall; the machine is just busy."""
LONGEST_RESPITE = 1.0
"""The longest time in seconds after a stall in which nothing expires."""
RESPITES = 10
"""How many times a deadline that has passed is postponed."""

_SHARE = 0.25
"""The fraction of the time left until the nearest deadline that passes before the next look."""
_SHORTEST_LOOK = 0.25
"""The shortest time between two looks, in seconds."""
_SHORTEST_PAUSE = 1e-6
"""Seconds. A shorter pause may vanish in the rounding of the loop's time, and would never pass."""


class Deadline:
    """A function to be called when a deadline has passed, unless it is cancelled."""

    __slots__ = ("_call", "_context", "is_over")

    def __init__(self, call: Callable[[], object], context: Context) -> None:
        self._call: Callable[[], object] | None = call
        self._context: Context | None = context
        self.is_over = False

    def cancel(self) -> None:
        """Cancel the call and release the function, as the heap keeps this object for a while."""
        self.is_over = True
        self._call = self._context = None

    def expire(self) -> None:
        call, context = self._call, self._context
        self.cancel()
        if call is not None and context is not None:
            context.run(call)


class PatientDeadlines(DeadlineHeap):
    """Schedules deadlines of one process, not counting the time in which the process stood still.

    After a stall, nothing expires before the unread input has been handled. Call all methods on the
    loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._stood_still = 0.0
        """How many seconds the process has stood still so far."""
        self._late_at = inf
        """The loop time after which the next look counts as late."""
        self._respite_until = -inf
        """The counted time (see :meth:`time`) until which nothing expires."""
        self._respites = 0
        """How many respites in a row the nearest due deadline has had."""

    def time(self) -> float:
        """Return the counted time in seconds: loop time minus the time the process stood still."""
        now = self._loop.time()
        if now > self._late_at:
            self._goes_on(now)
        return now - self._stood_still

    def begin(self, now: float, seconds: float, expirable: Expirable) -> None:
        """Expire *expirable* after *seconds* of counted time (see :meth:`time`), unless it has
        ended by then.

        *now* is the loop's time.
        """
        if now > self._late_at:
            self._goes_on(now)
        self._push(now - self._stood_still + seconds, expirable)
        if self._timer is None or now + _SHARE * seconds < self._timer_at:
            self._look_after(seconds, now)

    def call_after(self, seconds: float, call: Callable[[], object]) -> Deadline:
        """Call *call* after *seconds* of counted time (see :meth:`time`), outside of any handler's
        context.

        Returns the deadline, by which the call can be cancelled.
        """
        deadline = Deadline(call, outside_of_handler(copy_context))
        self.begin(self._loop.time(), seconds, deadline)
        return deadline

    async def within(self, seconds: float | None, awaitable: Awaitable[T]) -> T:
        """Wait for *awaitable*, at most *seconds* of counted time (None: without a limit).

        Use this instead of :func:`flinkray.rpc.time_limit.within` if unread input may complete
        *awaitable*. Raises asyncio.TimeoutError.
        """
        if seconds is None:
            return await within(None, awaitable)
        task = asyncio.ensure_future(awaitable)
        over: asyncio.Future[None] = self._loop.create_future()
        deadline = self.call_after(seconds, over.cancel)
        both: set[asyncio.Future[Any]] = {task, over}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            is_done = task.done()
        finally:
            deadline.cancel()
            over.cancel()
            task.cancel()  # no effect on a done task; a future that is not a task becomes done
            task.add_done_callback(retrieve)
        if not is_done:
            raise asyncio.TimeoutError
        return task.result()

    def close(self) -> None:
        super().close()
        self._late_at = inf

    # --- looks --------------------------------------------------------------------------------

    def _look_after(self, left: float, now: float) -> None:
        if left > _SHORTEST_LOOK:
            pause = max(_SHARE * left, _SHORTEST_LOOK)
        else:
            pause = max(left, _SHORTEST_PAUSE) if left > 0 else 0.0
        if self._timer is None or now + pause < self._timer_at:
            self._arm(now + pause)
            self._late_at = now + pause + PUNCTUAL

    def _look_again(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late_at = inf
        nearest = self._nearest()
        if nearest is not None:
            counted = now - self._stood_still
            self._look_after(max(nearest, self._respite_until, counted) - counted, now)

    def _goes_on(self, now: float) -> None:
        """Note that the process stood still from the moment when its timer was due until *now*:
        this time does not count for deadlines, and nothing expires for a while."""
        stall = now - self._timer_at
        counted = self._timer_at - self._stood_still
        self._stood_still += stall
        nearest = self._nearest()
        self._respites = 0 if nearest is None or nearest > counted else self._respites + 1
        respite = min(stall, LONGEST_RESPITE) if self._respites <= RESPITES else 0.0
        self._respite_until = counted + respite
        self._look_again(now)

    def _timer_over(self) -> None:
        now = self._loop.time()
        if now > self._late_at:
            self._goes_on(now)
            if self._respites <= RESPITES:
                return
        counted = now - self._stood_still
        if counted >= self._respite_until:
            self._respites = 0
            self._expire_until(counted)
        self._look_again(now)
