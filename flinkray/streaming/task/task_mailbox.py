"""The mailbox that drives a task: what others want done, in between the task's own steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum

from flinkray.core.errors import FlinkRayError

Mail = Callable[[], None]


class MailboxClosedError(FlinkRayError):
    """The task has ended, or is ending, and takes no more mail."""


class _State(Enum):
    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


class TaskMailbox:
    """Mail from any thread, carried out by the task's.

    Open, it takes mail; quiesced, it takes none, but what it has may still be taken; closed,
    neither.  Mail with priority is taken first, the latest of it before the earlier.
    """

    def __init__(self) -> None:
        self._mail: deque[Mail] = deque()
        self._changed = threading.Condition()
        self._state = _State.OPEN
        self._on_mail: Callable[[], None] | None = None

    def listen(self, callback: Callable[[], None]) -> None:
        """Be called, by whoever puts it, for each mail; it must not block."""
        self._on_mail = callback

    def put(self, mail: Mail) -> None:
        """Have *mail* called by the task.

        Raises:
            MailboxClosedError: quiesced or closed.
        """
        self._put(mail, False)

    def put_first(self, mail: Mail) -> None:
        """The same with priority."""
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

    def has_mail(self) -> bool:
        return bool(self._mail)

    def try_take(self) -> Mail | None:
        """The next mail, or None."""
        if not self._mail and self._state is not _State.CLOSED:  # without the lock: the rule
            return None
        with self._changed:
            return self._take()

    def take(self, timeout: float | None = None) -> Mail | None:
        """Wait for mail, for at most *timeout* seconds of real time.

        Raises:
            MailboxClosedError: closed, also while waiting.
        """
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
        """Carry out the mail that is there now, not what comes meanwhile: a sender that never
        stops must not keep the task from its own work.  Whether there was any."""
        if not self._mail:
            return False
        for _ in range(len(self._mail)):
            mail = self.try_take()
            if mail is None:
                break
            mail()
        return True

    def quiesce(self) -> None:
        """Take no more mail."""
        with self._changed:
            if self._state is _State.OPEN:
                self._state = _State.QUIESCED

    def close(self) -> list[Mail]:
        """End; the mail that was never carried out."""
        with self._changed:
            self._state = _State.CLOSED
            left = list(self._mail)
            self._mail.clear()
            self._changed.notify_all()
            return left
