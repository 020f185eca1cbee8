"""What barriers in a task's input lead to: strategies, one for each guarantee.

A handler is told of what comes in the channels, and says when the task is to take its snapshot.
All calls come from the task's thread.  Channels are numbered from 0; ids of checkpoints increase.

After Flink's ``SingleCheckpointBarrierHandler`` and ``CheckpointBarrierTracker``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from flinkray.core.clock import Clock
from flinkray.streaming.records.elements import Barrier

MOST_TRACKED = 50
"""Checkpoints that are waited for at a time, at least once; older ones are forgotten."""

SUBSUMED = "a barrier of a later checkpoint came before all of its own"
DECLINED_BEFORE = "a task before this one has given it up"
ABORTED = "the coordinator has given it up"


class BlockableGate(Protocol):
    """The task's input, as far as handlers go."""

    def block(self, channel: int) -> None:
        """Read nothing from it until it is resumed."""

    def resume_all(self) -> None:
        """Read from all channels again."""


class CheckpointableTask(Protocol):
    """The task, as far as handlers go."""

    def perform_checkpoint(self, barrier: Barrier) -> None:
        """Send the barrier on and take the snapshot, now."""

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """The task takes no part in it; tasks behind this one are to be told."""

    def call_at(self, timestamp: int, action: Callable[[], None]) -> None:
        """Between two portions of the input, when it is that time: milliseconds since 1970."""


class BarrierHandler(ABC):
    """See the module.

    Args:
        channels: number of channels of the task's input.
    """

    def __init__(self, gate: BlockableGate, task: CheckpointableTask, channels: int) -> None:
        self._gate = gate
        self._task = task
        self._open = set(range(channels))
        self.alignment_seconds = 0.0
        """For which channels waited for barriers in others, in the last checkpoint that was taken
        aligned or timed out; any thread may read it."""

    @abstractmethod
    def barrier(self, channel: int, barrier: Barrier) -> None:
        """It has come to a barrier in that channel."""

    @abstractmethod
    def cancelled(self, channel: int, checkpoint_id: int) -> None:
        """It has come to a sign that a task before this one takes no part in that checkpoint."""

    @abstractmethod
    def aborted(self, checkpoint_id: int) -> None:
        """The coordinator has given the checkpoint up."""

    def ended(self, channel: int) -> None:
        """Nothing follows in that channel: as good as the barriers of all checkpoints (ST-04)."""
        self._open.discard(channel)
        self._on_ended(channel)

    def is_recording(self, channel: int) -> bool:
        """Whether what is read from that channel now was in flight when the snapshot was taken,
        and belongs to the checkpoint."""
        return False

    @abstractmethod
    def _on_ended(self, channel: int) -> None: ...


class InFlightRecorder(Protocol):
    """Keeps what was in flight for a checkpoint."""

    def overtaken(self, checkpoint_id: int, channel: int) -> None:
        """A barrier came in that channel before what was sent ahead of it and has not been read:
        that belongs to the checkpoint."""

    def completed(self, checkpoint_id: int) -> None:
        """All channels have brought the barrier: nothing more belongs to it."""

    def dropped(self, checkpoint_id: int) -> None:
        """It was given up."""


class ExactlyOnceHandler(BarrierHandler):
    """No record before a barrier counts as one after it, and none the other way round.

    An *aligned* checkpoint: a channel that has brought its barrier is not read from until all open
    ones have; then the snapshot is taken (ST-01).  An *unaligned* one: the snapshot is taken at the
    first barrier; what is read from the other channels until theirs come belongs to it as well
    (ST-06).  Which it is, each barrier says: savepoints are aligned where checkpoints are not
    (ST-07).  An aligned checkpoint with a *time-out* goes on as an unaligned one when that is over,
    or when a barrier comes that has overtaken what it had to wait behind (ST-08).
    """

    def __init__(
        self,
        gate: BlockableGate,
        task: CheckpointableTask,
        channels: int,
        recorder: InFlightRecorder,
        clock: Clock,
    ) -> None:
        super().__init__(gate, task, channels)
        self._recorder = recorder
        self._clock = clock
        self._first_came_at = 0.0
        """The first barrier of the latest checkpoint, by that clock."""
        self._latest = 0
        """Id of the latest checkpoint that was heard of; older ones are over."""
        self._pending: Barrier | None = None
        """Of that checkpoint, while barriers of it are waited for."""
        self._came: set[int] = set()
        """Channels that have brought it."""

    @property
    def pending(self) -> Barrier | None:
        """Of the checkpoint whose barriers are waited for."""
        return self._pending

    def barrier(self, channel: int, barrier: Barrier) -> None:
        is_first = barrier.checkpoint_id > self._latest
        if is_first:
            self._give_up(SUBSUMED)
            self._latest = barrier.checkpoint_id
            self._pending = barrier
            self._first_came_at = self._clock.monotonic()
            if barrier.unaligned:
                self._task.perform_checkpoint(barrier)
        if self._pending is None or barrier.checkpoint_id < self._latest:
            return  # late: it was given up
        self._came.add(channel)
        if barrier.unaligned:
            self.alignment_timed_out(barrier.checkpoint_id)
            self._recorder.overtaken(barrier.checkpoint_id, channel)
        elif not self._pending.unaligned:
            self._gate.block(channel)
        self._complete_if_all_came()
        if is_first and self._pending is not None and barrier.overtakes_at is not None:
            timed_out = partial(self.alignment_timed_out, barrier.checkpoint_id)
            self._task.call_at(barrier.overtakes_at, timed_out)

    def alignment_timed_out(self, checkpoint_id: int) -> None:
        """The checkpoint goes on as an unaligned one, if it is still waited for (ST-08)."""
        pending = self._pending
        if pending is None or pending.unaligned or pending.checkpoint_id != checkpoint_id:
            return
        self._pending = replace(pending, unaligned=True)
        self._measure_alignment()
        self._gate.resume_all()
        self._task.perform_checkpoint(self._pending)

    def is_recording(self, channel: int) -> bool:
        pending = self._pending
        return pending is not None and pending.unaligned and channel not in self._came

    def cancelled(self, channel: int, checkpoint_id: int) -> None:
        if checkpoint_id > self._latest:
            self._give_up(SUBSUMED)
            self._latest = checkpoint_id
            self._task.abort_checkpoint(checkpoint_id, DECLINED_BEFORE)
        elif checkpoint_id == self._latest:
            self._give_up(DECLINED_BEFORE)

    def aborted(self, checkpoint_id: int) -> None:
        if checkpoint_id == self._latest:
            self._give_up(ABORTED)

    def _on_ended(self, channel: int) -> None:
        self._complete_if_all_came()

    def _complete_if_all_came(self) -> None:
        barrier = self._pending
        if barrier is None or not self._open <= self._came:
            return
        self._release()
        if barrier.unaligned:
            self._recorder.completed(barrier.checkpoint_id)
        else:
            self._measure_alignment()
            self._task.perform_checkpoint(barrier)

    def _measure_alignment(self) -> None:
        self.alignment_seconds = self._clock.monotonic() - self._first_came_at

    def _give_up(self, reason: str) -> None:
        barrier = self._pending
        if barrier is None:
            return
        self._release()
        if barrier.unaligned:
            self._recorder.dropped(barrier.checkpoint_id)
        self._task.abort_checkpoint(barrier.checkpoint_id, reason)

    def _release(self) -> None:
        self._pending = None
        self._came.clear()
        self._gate.resume_all()


@dataclass
class _Tracked:
    barrier: Barrier | None
    came: set[int] = field(default_factory=set)
    is_aborted: bool = False


class BarrierTracker(BarrierHandler):
    """At least once: nothing is blocked; the snapshot is taken when all open channels have brought
    the barrier, also when barriers of later checkpoints came in between (ST-05)."""

    def __init__(self, gate: BlockableGate, task: CheckpointableTask, channels: int) -> None:
        super().__init__(gate, task, channels)
        self._tracked: dict[int, _Tracked] = {}
        """By id."""
        self._done = 0
        """Id of the latest checkpoint that is not waited for any more, as are all before it."""

    def barrier(self, channel: int, barrier: Barrier) -> None:
        tracked = self._track(barrier.checkpoint_id)
        if tracked is None:
            return
        tracked.barrier = barrier
        tracked.came.add(channel)
        self._perform_complete()

    def cancelled(self, channel: int, checkpoint_id: int) -> None:
        tracked = self._track(checkpoint_id)
        if tracked is None:
            return
        tracked.came.add(channel)
        if not tracked.is_aborted:
            tracked.is_aborted = True
            self._task.abort_checkpoint(checkpoint_id, DECLINED_BEFORE)
        self._perform_complete()

    def aborted(self, checkpoint_id: int) -> None:
        if checkpoint_id in self._tracked:
            self._tracked[checkpoint_id].is_aborted = True

    def _on_ended(self, channel: int) -> None:
        self._perform_complete()

    def _track(self, checkpoint_id: int) -> _Tracked | None:
        """None: it is not waited for any more."""
        if checkpoint_id <= self._done:
            return None
        if checkpoint_id not in self._tracked:
            self._tracked[checkpoint_id] = _Tracked(None)
            if len(self._tracked) > MOST_TRACKED:
                self._forget_up_to(min(self._tracked))
        return self._tracked.get(checkpoint_id)

    def _perform_complete(self) -> None:
        complete = [i for i, tracked in self._tracked.items() if self._open <= tracked.came]
        for checkpoint_id in sorted(complete):
            tracked = self._tracked[checkpoint_id]
            self._forget_up_to(checkpoint_id)
            if tracked.barrier is not None and not tracked.is_aborted:
                self._task.perform_checkpoint(tracked.barrier)

    def _forget_up_to(self, checkpoint_id: int) -> None:
        self._done = checkpoint_id
        self._tracked = {i: t for i, t in self._tracked.items() if i > checkpoint_id}
