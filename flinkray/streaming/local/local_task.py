"""A task of a local job. It shares a thread with all other tasks.

A step of a task may have to stop in the middle of a batch, deep in user code, until other tasks
have read its results. So the task runs in a greenlet, which has its own stack. Like a thread it
also has its own context variables, among them the contexts of ``decimal`` and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import get_ident

from greenlet import GreenletExit, getcurrent, greenlet

from flinkray.streaming.errors import StreamError
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_mailbox import MailboxClosedError


class LocalTask:
    """Runs a task in a greenlet. *wake* is called when the task has work; from any thread."""

    def __init__(self, task: StreamTask, wake: Callable[[], None]) -> None:
        self.task = task
        self.name = task.name
        self._wake = wake
        task.turn.pause = self._pause
        task.turn.wait_until = self._wait_until
        task.turn.wake = wake
        task.turn.post = self._post
        self._context = copy_context()
        self._paused: greenlet | None = None
        self._running: greenlet | None = None
        self._thread = 0
        """The thread of the last step, which the greenlet's stack belongs to."""

    def open(self) -> None:
        self._context.run(self.task.open)

    def step(self) -> bool:
        """Do everything that needs no waiting. Returns False if there was nothing to do."""
        stack = self._paused
        if stack is None:
            stack = greenlet(self.task.step)
            stack.gr_context = self._context
        elif self._thread != get_ident():
            raise StreamError(
                "a program in this process goes on in the thread that it was begun in: take all of "
                "its results in one thread, or run it with execute_async"
            )
        elif not self.task.has_room():
            return False
        stack.parent = getcurrent()  # the parent may change if a function runs this job
        self._paused, self._running, self._thread = None, stack, get_ident()
        try:
            progressed = bool(stack.switch())
        finally:
            self._running = None
        if not stack.dead:
            self._paused = stack
        return progressed

    def _pause(self) -> None:
        monotonic = self.task.time_service.clock.monotonic
        begun = monotonic()
        self._leave(True)
        self.task.turn.paused += monotonic() - begun

    def _leave(self, progressed: bool) -> None:
        stack = self._running
        if stack is not None and stack is getcurrent() and stack.parent is not None:
            stack.parent.switch(progressed)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        turn = self.task.turn
        turn.is_waiting = True
        try:
            while not condition():
                self.task.flush()
                self._leave(False)
        finally:
            turn.is_waiting = False

    def _post(self, mail: Callable[[], None]) -> None:
        with suppress(MailboxClosedError):
            self.task.mailbox.put(mail)
        self._wake()

    def close(self) -> None:
        """Close the operators. A batch in progress is abandoned. That is not possible from another
        thread; the greenlet's own thread abandons the batch later."""
        stack, self._paused = self._paused, None
        try:
            if stack is not None and self._thread == get_ident():
                stack.throw(GreenletExit)
        finally:
            self._context.run(self.task.close)
