"""Deadlines after which others are given up, in the time in which this process was served.

A process that stood still (it was stopped, its machine was suspended, a callback took long) is
late for all of its deadlines when it goes on.  What it waited for may lie in its sockets, behind
much else; and what it asks of others itself, they could not answer, as it did not ask.  So:

- *The time in which it stood still does not count.*  It shows in a timer of ours, the *look*, that
  is late.  There is a look when a quarter of what is left of the nearest deadline has passed, so
  a stall of any length costs that deadline a quarter of what was left, and no deadline more.
- *After a stall nothing expires at once*, but when what lay there has been handled: for as long
  as the process stood still itself, at most :data:`LONGEST_RESPITE`, and not before a look that
  is on time.  While much is handled, looks are late.

So a deadline passes after at least as long as it says, and when it says if nothing stood still.
Who is dead is found all the same: each look uses up some of what is left, and a deadline that has
passed is put off :data:`RESPITES` times at most.

One object for each process, for all of its deadlines: of asks, heartbeats, registrations, slots,
leases (:meth:`RpcEndpoint.schedule_deadline`).  What is only to happen *later*, and gives nobody
up, is an ordinary timer.
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
"""Seconds: a look that is late by less tells of no stall, but of a busy machine."""
LONGEST_RESPITE = 1.0
"""Seconds after a stall in which nothing expires, at most."""
RESPITES = 10
"""A deadline that has passed is put off so many times."""

_SHARE = 0.25
"""Of what is left of the nearest deadline, until the next look."""
_SHORTEST_LOOK = 0.25
"""Seconds: what is left is divided no further."""
_SHORTEST_PAUSE = 1e-6
"""Seconds: less may be lost in the digits of the loop's time, and would never pass."""


class Deadline:
    """A call that somebody made for later; ``cancel`` is idempotent."""

    __slots__ = ("_call", "_context", "is_over")

    def __init__(self, call: Callable[[], object], context: Context) -> None:
        self._call: Callable[[], object] | None = call
        self._context: Context | None = context
        self.is_over = False

    def cancel(self) -> None:
        """Deadlines keep the object for a while, and nothing of what it was for."""
        self.is_over = True
        self._call = self._context = None

    def expire(self) -> None:
        call, context = self._call, self._context
        self.cancel()
        if call is not None and context is not None:
            context.run(call)


class PatientDeadlines(DeadlineHeap):
    """See the module.  All methods are to be called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._stood_still = 0.0
        """Seconds so far."""
        self._late_at = inf
        """In the loop's time: until then the next look is on time."""
        self._respite_until = -inf
        """In the time that counts."""
        self._respites = 0
        """So many since something was due that has not expired yet."""

    def time(self) -> float:
        """Seconds that count: the loop's time without that in which this process stood still."""
        now = self._loop.time()
        if now > self._late_at:
            self._goes_on(now)
        return now - self._stood_still

    def begin(self, now: float, seconds: float, expirable: Expirable) -> None:
        """Expire it *seconds* from now, if it is not over by then; *now* in the loop's time."""
        if now > self._late_at:
            self._goes_on(now)
        self._push(now - self._stood_still + seconds, expirable)
        if self._timer is None or now + _SHARE * seconds < self._timer_at:
            self._look_after(seconds, now)

    def call_after(self, seconds: float, call: Callable[[], object]) -> Deadline:
        """Call it *seconds* from now, as from outside of any handler."""
        deadline = Deadline(call, outside_of_handler(copy_context))
        self.begin(self._loop.time(), seconds, deadline)
        return deadline

    async def within(self, seconds: float | None, awaitable: Awaitable[T]) -> T:
        """As :func:`flinkray.rpc.time_limit.within`, for what may be done by what lies unread.

        Raises:
            asyncio.TimeoutError: it was not done in time.
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
            task.cancel()  # no harm if it is done; a future, other than a task, is done by it
            task.add_done_callback(retrieve)
        if not is_done:
            raise asyncio.TimeoutError
        return task.result()

    def close(self) -> None:
        super().close()
        self._late_at = inf

    # --- looks --------------------------------------------------------------------------------

    def _look_after(self, left: float, now: float) -> None:
        """There is nothing to expire for *left* seconds; unless there is an earlier look."""
        if left > _SHORTEST_LOOK:
            pause = max(_SHARE * left, _SHORTEST_LOOK)
        else:
            pause = max(left, _SHORTEST_PAUSE) if left > 0 else 0.0
        if self._timer is None or now + pause < self._timer_at:
            self._arm(now + pause)
            self._late_at = now + pause + PUNCTUAL

    def _look_again(self, now: float) -> None:
        """When the nearest deadline wants it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late_at = inf
        nearest = self._nearest()
        if nearest is not None:
            counted = now - self._stood_still
            self._look_after(max(nearest, self._respite_until, counted) - counted, now)

    def _goes_on(self, now: float) -> None:
        """The process stood still since the look was due, which is *now* looked for."""
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
