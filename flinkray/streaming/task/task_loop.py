"""Drives a task in a thread of its own, which waits, without polling, for something to do."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from flinkray.core.clock import Clock
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sources.coordinator import END_OF_SPLITS
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_mailbox import MailboxClosedError

POLL_INTERVAL = 0.005
"""Seconds between two polls of a source that cannot say when it will have records."""


class SplitRequests(Protocol):
    """The way from a task's reader to the enumerator of its source."""

    def request_split(self) -> None:
        """Ask for one more; it comes through the task's mailbox."""


class TaskLoop:
    """See the module.  To be made before others may put mail into the task's mailbox.

    Args:
        signal: set by whatever the task may wait for: its gate, its partitions, a cancellation.
        check: raises when the task is to end.
        splits: of a task that reads a source.
        stopwatch: seconds, by which it is told for how long the task has waited.
    """

    def __init__(
        self,
        task: StreamTask,
        signal: Signal,
        clock: Clock,
        check: Callable[[], None],
        splits: SplitRequests | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._task = task
        self._signal = signal
        self._clock = clock
        self._check = check
        self._splits = splits
        self._source = task.head if isinstance(task.head, SourceOperator) else None
        self._stopwatch = stopwatch
        self._begun = stopwatch()
        self._waited = 0.0
        self._waiting_since: float | None = None
        self._ended: float | None = None
        task.mailbox.listen(signal.set)
        task.turn.pause = self._pause
        task.turn.wait_until = self.wait_until
        task.turn.post = self.post
        task.turn.wake = signal.set

    def run(self) -> None:
        """Until the task has ended."""
        task = self._task
        self._pass_on_request()
        while not task.finished:
            self._check()
            progressed = task.step()
            self._pass_on_request()
            if not progressed and not task.finished:
                self._wait(self._longest_wait())

    def _pause(self) -> None:
        """In the middle of a batch: until those who read the results keep up."""
        self._check()
        begun = self._clock.monotonic()
        while not self._task.has_room():
            self._wait()
            self._check()
        self._task.turn.paused += self._clock.monotonic() - begun

    def elapsed(self) -> float:
        """Seconds from the task's begin to its end; like :meth:`waited`, from any thread."""
        return self._now() - self._begun

    def waited(self) -> float:
        """Seconds for which it had nothing to do, or no room for results; or, at its end, its
        results had not been read."""
        since = self._waiting_since
        return self._waited + (0.0 if since is None else self._now() - since)

    def _now(self) -> float:
        return self._stopwatch() if self._ended is None else self._ended

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """For what the signal tells of; the task has ended, or is in the middle of a batch."""
        while not is_done():
            self._check()
            self._wait()

    def end(self) -> None:
        """Nothing follows: its time does not go on."""
        self._ended = self._stopwatch()

    def post(self, mail: Callable[[], None]) -> None:
        """From any thread: have it done between two steps, unless the task has ended."""
        with suppress(MailboxClosedError):
            self._task.mailbox.put(mail)

    def told(self, events: Sequence[bytes]) -> None:
        """From any thread: what the enumerator says to the reader."""
        self.post(lambda: self._tell_reader(events))

    def give_all(self, splits: Sequence[object]) -> None:
        """From any thread: what the reader reads, where no enumerator hands it out."""
        self.post(lambda: self._give_all(splits))

    def _give_all(self, splits: Sequence[object]) -> None:
        assert self._source is not None
        self._source.add_splits(splits)
        self._source.no_more_splits()

    def _tell_reader(self, events: Sequence[bytes]) -> None:
        assert self._source is not None
        for event in events:
            if event == END_OF_SPLITS:
                self._source.no_more_splits()
            else:
                self._source.add_splits([pickle.loads(event)])

    def _pass_on_request(self) -> None:
        if self._source is not None and self._source.reader_context.split_requested:
            self._source.reader_context.split_requested = False
            assert self._splits is not None
            self._splits.request_split()

    def _wait(self, seconds: float = -1) -> None:
        """For the signal; -1: however long it takes."""
        begun = self._waiting_since = self._stopwatch()
        self._signal.wait(seconds)
        self._waiting_since = None
        self._waited += self._stopwatch() - begun

    def _longest_wait(self) -> float:
        """Seconds; -1: until the signal."""
        if self._task.is_stopping:
            return -1
        now = self._clock.time()
        at = math.inf
        deadline = self._task.time_service.next_deadline()
        if deadline is not None:
            at = deadline / 1000
        source = self._source
        is_reading = source is not None and not self._task.has_ended and not source.paused
        if source is not None and is_reading and self._task.has_room():
            poll_at = source.reader.next_poll_time()
            at = min(at, now + POLL_INTERVAL if poll_at is None else poll_at)
        return -1 if at == math.inf else max(at - now, 0.0)
