"""Runs a task in its own thread, which waits for work without polling."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from flinkray.core.clock import Clock
from flinkray.state.thread_turns import give_way
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sources.coordinator import END_OF_SPLITS
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_mailbox import MailboxClosedError

POLL_INTERVAL = 0.005
"""Seconds between two polls of a source that cannot say when it will have records."""


class SplitRequests(Protocol):
    """Interface with which a task asks the enumerator of its source for splits."""

    def request_split(self) -> None:
        """Ask for one more split, which comes through the task's mailbox."""


class TaskLoop:
    """Runs a task in the thread that calls :meth:`run`, and waits while the task has nothing to do.

    Create it before others put mail into the task's mailbox. *signal* is set by everything for
    which the task may wait: its gate, its partitions, a cancellation. *check* is called between
    steps and raises an exception when the task must end. *splits* sends the split requests of the
    task's source; None: the task reads no source. *stopwatch*: a clock in seconds.
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
        task = self._task
        self._pass_on_request()
        while not task.finished:
            self._check()
            give_way()
            progressed = task.step()
            self._pass_on_request()
            if progressed:
                self._signal.poll()
            elif not task.finished:
                self._wait(self._longest_wait())

    def _pause(self) -> None:
        self._check()
        begun = self._clock.monotonic()
        while not self._task.has_room():
            self._wait()
            self._check()
        self._task.turn.paused += self._clock.monotonic() - begun

    def elapsed(self) -> float:
        """Return the seconds from the task's begin to its end, or to now while it runs.
        May be called from any thread."""
        return self._now() - self._begun

    def waited(self) -> float:
        """Return the seconds for which the task had no work or no room for results. May be called
        from any thread. After the task's last record, this includes the time until its results were
        read."""
        since = self._waiting_since
        return self._waited + (0.0 if since is None else self._now() - since)

    def _now(self) -> float:
        return self._stopwatch() if self._ended is None else self._ended

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait until *is_done* returns true; it is called again after each signal. Used in the
        middle of a batch, or when the task has ended."""
        while not is_done():
            self._check()
            self._wait()

    def end(self) -> None:
        """Stop the time that :meth:`elapsed` returns, because the task has ended."""
        self._ended = self._stopwatch()

    def post(self, mail: Callable[[], None]) -> None:
        """Make the task run *mail* between two steps, unless the task has ended.
        May be called from any thread."""
        with suppress(MailboxClosedError):
            self._task.mailbox.put(mail)

    def told(self, events: Sequence[bytes]) -> None:
        """Make the task hand *events* of its source's enumerator to its reader. May be called from
        any thread."""
        self.post(lambda: self._tell_reader(events))

    def give_all(self, splits: Sequence[object]) -> None:
        """Give the reader all its splits, for a source whose splits are not handed out by an
        enumerator; may be called from any thread."""
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
        """Wait for the signal, for at most *seconds*; -1: without limit."""
        begun = self._waiting_since = self._stopwatch()
        self._signal.wait(seconds)
        self._waiting_since = None
        self._waited += self._stopwatch() - begun

    def _longest_wait(self) -> float:
        """Return for how many seconds the task may wait for a signal, before a timer or a poll of
        the source is due; -1: without limit."""
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
