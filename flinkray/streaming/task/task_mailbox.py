"""The mailbox of a task: functions of other threads that the task runs between its own steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum

from flinkray.core.errors import FlinkRayError

Mail = Callable[[], None]


class MailboxClosedError(FlinkRayError):
    """Raised when the mailbox of a task refuses mail, because the task has ended or is ending."""

    retryable = True


class _State(Enum):
    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


class TaskMailbox:
    """Functions (*mail*) that any thread puts in and that the task's thread runs. When *quiesced*,
    the mailbox refuses new mail, and the mail in it can still be taken; when *closed*, it is empty.
    Mail with priority is taken first, the latest such mail before earlier."""

    def __init__(self) -> None:
        self._mail: deque[Mail] = deque()
        self._changed = threading.Condition()
        self._state = _State.OPEN
        self._on_mail: Callable[[], None] | None = None

    def listen(self, callback: Callable[[], None]) -> None:
        """Set a function that the sender's thread calls for each mail.
        The function must not block."""
        self._on_mail = callback

    def put(self, mail: Mail) -> None:
        """Make the task run *mail*.
        Raises MailboxClosedError if the mailbox is quiesced or closed."""
        self._put(mail, False)

    def put_first(self, mail: Mail) -> None:
        """Make the task run *mail* before all other mail.
        Raises MailboxClosedError: the mailbox is quiesced or closed."""
        self._put(mail, True)

    def _put(self, mail: Mail, first: bool) -> None:
        with self._changed:
            if self._state is not _State.OPEN:
                raise MailboxClosedError(f"the mailbox is {self._state.value}")
            if first:
                self._mail.appendleft(mail)
            else:
                self._mail.append(mail)
            self._changed.notify()
        if self._on_mail is not None:
            self._on_mail()

    def try_take(self) -> Mail | None:
        """Remove and return the next mail. None if there is no mail; does not wait."""
        if not self._mail and self._state is not _State.CLOSED:  # the common case needs no lock
            return None
        with self._changed:
            return self._take()

    def take(self, timeout: float | None = None) -> Mail | None:
        """Wait for mail, for at most *timeout* seconds of real time. Returns None after that.
        Raises MailboxClosedError: the mailbox is closed, or was closed during the wait."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._mail) or self._state is _State.CLOSED, timeout
            )
            return self._take()

    def _take(self) -> Mail | None:
        if self._state is _State.CLOSED:
            raise MailboxClosedError("the mailbox is closed")
        return self._mail.popleft() if self._mail else None

    def run_pending(self) -> bool:
        """Run the mail that is in the mailbox now. Returns whether there was any.
        Mail that arrives during this call is not run, so that the task gets to its own work."""
        if not self._mail:
            return False
        for _ in range(len(self._mail)):
            mail = self.try_take()
            if mail is None:
                break
            mail()
        return True

    def quiesce(self) -> None:
        with self._changed:
            if self._state is _State.OPEN:
                self._state = _State.QUIESCED

    def close(self) -> list[Mail]:
        """Close the mailbox. Returns the mail that was never run."""
        with self._changed:
            self._state = _State.CLOSED
            left = list(self._mail)
            self._mail.clear()
            self._changed.notify_all()
            return left
