"""Barrier handlers: how a task reacts to barriers in its input, one strategy per guarantee.

The task reports events in its channels to a handler, which decides when the task takes its
snapshot. The task's thread makes all calls. Channels are numbered from 0. Checkpoint ids increase.

Modelled on Flink's ``SingleCheckpointBarrierHandler`` and ``CheckpointBarrierTracker``.
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
"""Most checkpoints that an at-least-once task waits for at a time. The oldest is forgotten."""

SUBSUMED = "a barrier of a later checkpoint came before all of its own"
DECLINED_BEFORE = "a task before this one has given it up"
ABORTED = "the coordinator has given it up"


class BlockableGate(Protocol):
    """Interface of an input gate, with which a :class:`BarrierHandler` stops reading channels."""

    def block(self, channel: int) -> None: ...

    def resume_all(self) -> None: ...


class CheckpointableTask(Protocol):
    """Interface of a task as a :class:`BarrierHandler` sees it: it takes part in checkpoints."""

    def perform_checkpoint(self, barrier: Barrier) -> None:
        """Send the barrier downstream and take the task's snapshot, at once."""

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """Take no part in the checkpoint, and tell the downstream tasks so."""

    def call_at(self, timestamp: int, action: Callable[[], None]) -> None:
        """Call *action* at a time (milliseconds since 1970), between two portions of the input."""


class BarrierHandler(ABC):
    """Strategy for barriers in a task's input: decides when the task takes its snapshot.
    *channels*: number of channels of the task's input."""

    def __init__(self, gate: BlockableGate, task: CheckpointableTask, channels: int) -> None:
        self._gate = gate
        self._task = task
        self._open = set(range(channels))
        self.alignment_seconds = 0.0
        """Seconds for which channels waited for barriers of other channels. Measured in the last
        checkpoint that was taken aligned or that timed out. Any thread may read the value."""

    @abstractmethod
    def barrier(self, channel: int, barrier: Barrier) -> None:
        """Handle a barrier that the task has read in this channel: block the channel, take the
        snapshot, or wait for barriers of other channels."""

    @abstractmethod
    def cancelled(self, channel: int, checkpoint_id: int) -> None:
        """Give up a checkpoint in which an upstream task takes no part, as this channel says: this
        task cannot take part either."""

    @abstractmethod
    def aborted(self, checkpoint_id: int) -> None:
        """Give up a checkpoint that the coordinator has aborted: its barriers are not awaited any
        more."""

    def ended(self, channel: int) -> None:
        """Note that the channel has ended. The end counts as the barrier of every later checkpoint
        (ST-04)."""
        self._open.discard(channel)
        self._on_ended(channel)

    def is_recording(self, channel: int) -> bool:
        """Return whether an element that the task reads from this channel now must be stored with
        an unaligned checkpoint: the snapshot was taken, but the channel's barrier has not come yet.
        """
        return False

    @abstractmethod
    def _on_ended(self, channel: int) -> None: ...


class InFlightRecorder(Protocol):
    """Interface of a task's part that stores elements in flight with an unaligned checkpoint."""

    def overtaken(self, checkpoint_id: int, channel: int) -> None:
        """Record the unread elements of this channel, which a barrier has overtaken."""

    def completed(self, checkpoint_id: int) -> None:
        """Note that all channels have delivered the barrier: all data in flight was recorded, so
        that the checkpoint can be acknowledged."""

    def dropped(self, checkpoint_id: int) -> None:
        """Record no more data in flight of a checkpoint, which was aborted."""


class ExactlyOnceHandler(BarrierHandler):
    """Exactly once: records before a barrier never count as records after it, or vice versa.

    *Aligned* checkpoint: a channel that has delivered its barrier is blocked until all open
    channels have. Then the snapshot is taken (ST-01). *Unaligned* checkpoint: the snapshot is taken
    at the first barrier. Elements read from other channels until their barriers arrive also belong
    to the checkpoint (ST-06). Each barrier says which kind it is: savepoints are aligned even if
    checkpoints are not (ST-07). An aligned checkpoint with a *time-out* becomes unaligned when the
    time-out passes, or when a barrier arrives that has overtaken other elements (ST-08).
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
        """Arrival of the first barrier of the latest checkpoint, by *clock* (monotonic seconds)."""
        self._latest = 0
        """Id of the latest known checkpoint. Barriers of earlier checkpoints are ignored."""
        self._pending: Barrier | None = None
        self._came: set[int] = set()
        """Channels that have delivered the pending barrier."""

    @property
    def pending(self) -> Barrier | None:
        """The barrier of the checkpoint for which barriers of other channels are still awaited.
        None if no barriers are awaited."""
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
            return  # a late barrier of an aborted checkpoint
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
        """If barriers of some channels have not come yet, make the checkpoint unaligned, unblock
        all channels and take the snapshot now (ST-08)."""
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
    """At least once: no channel is blocked. The snapshot is taken when all open channels have
    delivered the barrier, even if barriers of later checkpoints came in between (ST-05)."""

    def __init__(self, gate: BlockableGate, task: CheckpointableTask, channels: int) -> None:
        super().__init__(gate, task, channels)
        self._tracked: dict[int, _Tracked] = {}
        self._done = 0
        """Id of the latest checkpoint that was performed or forgotten.
        Barriers of this checkpoint and of earlier checkpoints are ignored."""

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
        """Return the record of the channels that have delivered the barrier of a checkpoint, to be
        changed by the caller. None if the checkpoint was taken or aborted already."""
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
