"""What barriers lead to: scripts of barriers in channels, and what a task is told to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.checkpoint.barrier_handler import (
    MOST_TRACKED,
    BarrierHandler,
    BarrierTracker,
    ExactlyOnceHandler,
)
from flinkray.streaming.records.elements import Barrier
from flinkray.testing import ManualClock


class Task:
    """Gate, task and recorder: what handlers have asked for, in order."""

    def __init__(self, channels: int, exactly_once: bool = True) -> None:
        self.blocked: set[int] = set()
        self.clock = ManualClock()
        self.done: list[str] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.handler: BarrierHandler = (
            ExactlyOnceHandler(self, self, channels, self, self.clock)
            if exactly_once
            else BarrierTracker(self, self, channels)
        )

    def block(self, channel: int) -> None:
        self.blocked.add(channel)

    def resume_all(self) -> None:
        self.blocked.clear()

    def perform_checkpoint(self, barrier: Barrier) -> None:
        self.done.append(f"performed {barrier.checkpoint_id}")

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        self.done.append(f"aborted {checkpoint_id}")

    def call_at(self, timestamp: int, action: Callable[[], None]) -> None:
        self.timers.append((timestamp, action))

    def overtaken(self, checkpoint_id: int, channel: int) -> None:
        self.done.append(f"in flight {checkpoint_id}: channel {channel}")

    def completed(self, checkpoint_id: int) -> None:
        self.done.append(f"recorded {checkpoint_id}")

    def dropped(self, checkpoint_id: int) -> None:
        self.done.append(f"dropped {checkpoint_id}")

    def time_is_over(self) -> None:
        """For all that is waited for."""
        while self.timers:
            self.timers.pop()[1]()

    def barriers(self, checkpoint_id: int, *channels: int, unaligned: bool = False) -> None:
        for channel in channels:
            assert channel not in self.blocked, "a blocked channel is not read"
            self.handler.barrier(channel, Barrier(checkpoint_id, 0, unaligned=unaligned))


def test_channel_is_blocked_after_its_barrier_until_all_barriers_have_come() -> None:
    """ST-01."""
    task = Task(3)
    task.barriers(1, 0, 2)
    assert task.blocked == {0, 2}
    assert task.done == []
    task.barriers(1, 1)
    assert task.blocked == set()
    assert task.done == ["performed 1"]
    task.barriers(2, 1, 0, 2)
    assert task.done == ["performed 1", "performed 2"]


def test_alignment_duration_counts_only_the_time_in_which_channels_are_blocked() -> None:
    task = Task(2)
    task.barriers(1, 0)
    task.clock.advance(2.5)
    assert task.handler.alignment_seconds == 0
    task.barriers(1, 1)
    assert task.handler.alignment_seconds == 2.5
    task.handler.barrier(0, Barrier(2, 0, alignment_timeout=1))
    task.clock.advance(0.5)
    task.time_is_over()
    assert task.handler.alignment_seconds == 0.5
    task.clock.advance(7.0)
    task.barriers(2, 1, unaligned=True)
    assert task.handler.alignment_seconds == 0.5, "nothing is blocked after the time-out"


def test_alignment_does_not_wait_for_a_closed_channel() -> None:
    """ST-01."""
    task = Task(3)
    task.handler.ended(1)
    task.barriers(1, 0, 2)
    assert task.done == ["performed 1"]


def test_alignment_counts_the_end_of_a_channel_as_its_barrier() -> None:
    """ST-04, as in Flink 2.0."""
    task = Task(2)
    task.barriers(1, 0)
    task.handler.ended(1)
    assert task.done == ["performed 1"]
    assert task.blocked == set()


def test_barrier_of_a_later_checkpoint_aborts_the_alignment() -> None:
    """ST-02, the jumps of Flink's testMultiChannelJumpingOverCheckpoint: 2 and 3 are superseded;
    4 is completed by the end of a partition, as in Flink 2.0."""
    task = Task(3)
    task.barriers(1, 0, 1, 2)
    task.barriers(2, 0)
    task.barriers(3, 1)
    assert task.blocked == {1}
    task.barriers(3, 0)
    task.barriers(4, 2)
    assert task.blocked == {2}
    assert task.done == ["performed 1", "aborted 2", "aborted 3"]
    task.barriers(4, 0)
    task.handler.ended(1)
    assert task.done == ["performed 1", "aborted 2", "aborted 3", "performed 4"]


def test_cancel_marker_ends_the_alignment_and_aborts_the_checkpoint_once() -> None:
    task = Task(3)
    task.barriers(1, 0)
    task.handler.cancelled(1, 1)
    assert task.blocked == set()
    assert task.done == ["aborted 1"]
    task.handler.cancelled(2, 1)
    task.barriers(1, 2)
    assert task.blocked == set()
    assert task.done == ["aborted 1"]


def test_cancel_marker_of_a_later_checkpoint_aborts_an_older_alignment() -> None:
    task = Task(3)
    task.barriers(1, 0)
    task.handler.cancelled(1, 2)
    assert task.done == ["aborted 1", "aborted 2"]
    task.barriers(2, 0, 2)
    assert task.blocked == set()
    assert task.done == ["aborted 1", "aborted 2"]
    task.barriers(3, 0)
    task.handler.cancelled(1, 1)
    assert task.blocked == {0}
    assert task.done == ["aborted 1", "aborted 2"]


# --- at least once --------------------------------------------------------------------------------


def test_at_least_once_mode_blocks_no_channel_at_a_barrier() -> None:
    task = Task(2, exactly_once=False)
    task.barriers(1, 0)
    assert task.blocked == set()
    assert task.done == []
    task.barriers(1, 1)
    assert task.done == ["performed 1"]


def test_at_least_once_checkpoint_completes_although_a_later_one_has_begun() -> None:
    """ST-05."""
    task = Task(2, exactly_once=False)
    task.barriers(1, 0)
    task.barriers(2, 0)
    task.barriers(1, 1)
    assert task.done == ["performed 1"]
    task.barriers(2, 1)
    assert task.done == ["performed 1", "performed 2"]


def test_at_least_once_mode_drops_older_pending_checkpoints_when_one_completes() -> None:
    """ST-05."""
    task = Task(3, exactly_once=False)
    task.barriers(1, 0)
    task.barriers(2, 0, 1, 2)
    task.barriers(1, 1, 2)
    task.handler.ended(0)
    assert task.done == ["performed 2"]


def test_at_least_once_does_not_perform_a_cancelled_checkpoint() -> None:
    task = Task(3, exactly_once=False)
    task.barriers(1, 0)
    task.handler.cancelled(1, 1)
    task.handler.cancelled(2, 1)
    task.barriers(2, 0, 1, 2)
    task.barriers(3, 0)
    task.handler.aborted(3)
    task.barriers(3, 1, 2)
    task.barriers(4, 1, 0, 2)
    assert task.done == ["aborted 1", "performed 2", "performed 4"]


def test_at_least_once_mode_forgets_the_oldest_of_too_many_pending_checkpoints() -> None:
    task = Task(2, exactly_once=False)
    for checkpoint_id in range(1, MOST_TRACKED + 2):
        task.barriers(checkpoint_id, 0)
    task.barriers(1, 1)
    assert task.done == []
    task.barriers(2, 1)
    assert task.done == ["performed 2"]


# --- unaligned ------------------------------------------------------------------------------------


def test_unaligned_snapshot_is_taken_at_the_first_barrier() -> None:
    """ST-06: what other channels bring before their barriers is recorded for the checkpoint."""
    task = Task(3)
    task.barriers(1, 1, unaligned=True)
    assert task.done == ["performed 1", "in flight 1: channel 1"]
    assert task.blocked == set()
    assert [task.handler.is_recording(channel) for channel in range(3)] == [True, False, True]
    task.barriers(1, 0, unaligned=True)
    assert not task.handler.is_recording(0)
    task.barriers(1, 2, unaligned=True)
    assert not task.handler.is_recording(2)
    assert task.done[2:] == ["in flight 1: channel 0", "in flight 1: channel 2", "recorded 1"]


def test_end_of_a_channel_ends_the_recording_of_its_data_in_flight() -> None:
    task = Task(2)
    task.barriers(1, 0, unaligned=True)
    task.handler.ended(1)
    assert task.done == ["performed 1", "in flight 1: channel 0", "recorded 1"]


def test_aborted_unaligned_checkpoint_drops_its_recorded_data() -> None:
    task = Task(2)
    task.barriers(1, 0, unaligned=True)
    task.barriers(2, 1, unaligned=True)
    assert task.done == [
        "performed 1",
        "in flight 1: channel 0",
        "dropped 1",
        "aborted 1",
        "performed 2",
        "in flight 2: channel 1",
    ]
    task.handler.aborted(2)
    assert not task.handler.is_recording(0)
    assert task.done[-2:] == ["dropped 2", "aborted 2"]


def test_savepoints_are_aligned_between_unaligned_checkpoints() -> None:
    """ST-07."""
    task = Task(2)
    task.barriers(1, 0, 1, unaligned=True)
    task.done.clear()
    task.handler.barrier(0, Barrier(2, 0, savepoint=True))
    assert task.blocked == {0}
    assert not task.handler.is_recording(1)
    task.handler.barrier(1, Barrier(2, 0, savepoint=True))
    task.barriers(3, 0, unaligned=True)
    assert task.done == ["performed 2", "performed 3", "in flight 3: channel 0"]


def test_alignment_that_times_out_becomes_an_unaligned_checkpoint() -> None:
    """ST-08: all channels are read again; what comes before the missing barriers is recorded."""
    task = Task(3)
    task.barriers(1, 0)
    assert isinstance(task.handler, ExactlyOnceHandler)
    task.handler.alignment_timed_out(1)
    assert task.blocked == set()
    assert task.done == ["performed 1"]
    assert [task.handler.is_recording(channel) for channel in range(3)] == [False, True, True]
    task.barriers(1, 1, 2)
    assert task.blocked == set()
    assert task.done[1:] == ["recorded 1"]  # these barriers came in line, and overtook nothing


@pytest.mark.parametrize("ending", ["aligned", "aborted", "switched", "another"])
def test_timeout_after_the_end_of_an_alignment_is_ignored(ending: str) -> None:
    """ST-08: also after an abort, and a second timeout."""
    task = Task(2)
    task.barriers(1, 0)
    assert isinstance(task.handler, ExactlyOnceHandler)
    if ending == "aligned":
        task.barriers(1, 1)
    elif ending == "aborted":
        task.handler.aborted(1)
    elif ending == "switched":
        task.handler.alignment_timed_out(1)
    else:
        task.barriers(2, 1)
    blocked = set(task.blocked)
    task.done.clear()
    task.handler.alignment_timed_out(1)
    assert task.done == []
    assert task.blocked == blocked


def test_alignment_timeout_counts_from_the_trigger_of_the_checkpoint() -> None:
    """ST-08, ST-09: the first barrier starts the only timer of its checkpoint."""
    task = Task(3)
    task.handler.barrier(0, Barrier(1, 5_000, alignment_timeout=300))
    task.handler.barrier(2, Barrier(1, 5_000, alignment_timeout=300))
    task.handler.barrier(1, Barrier(2, 6_000, alignment_timeout=300))
    assert [timestamp for timestamp, _ in task.timers] == [5_300, 6_300]
    task.timers[0][1]()
    assert task.done == ["aborted 1"]
    assert task.blocked == {1}
    task.timers[1][1]()
    assert task.done == ["aborted 1", "performed 2"]
    assert task.blocked == set()


@pytest.mark.parametrize(
    "barrier",
    [
        Barrier(1, 0),
        Barrier(1, 0, unaligned=True, alignment_timeout=300),
        Barrier(1, 0, savepoint=True, alignment_timeout=300),
    ],
)
def test_barrier_without_alignment_timeout_starts_no_timer(barrier: Barrier) -> None:
    """ST-07, ST-08."""
    task = Task(2)
    task.handler.barrier(0, barrier)
    assert task.timers == []


def test_unaligned_barrier_turns_an_alignment_into_an_unaligned_checkpoint() -> None:
    """ST-08: this barrier waited too long at its sender or in its channel."""
    task = Task(3)
    task.handler.barrier(2, Barrier(1, 0, alignment_timeout=300))
    task.barriers(1, 0, unaligned=True)
    assert task.blocked == set()
    assert task.done == ["performed 1", "in flight 1: channel 0"]
    assert [task.handler.is_recording(channel) for channel in range(3)] == [False, True, False]
    task.handler.barrier(1, Barrier(1, 0, alignment_timeout=300))
    assert task.done[2:] == ["recorded 1"]
    task.timers[0][1]()
    assert task.done[3:] == []


# --- whatever order -------------------------------------------------------------------------------


@st.composite
def inputs(draw: st.DrawFn) -> tuple[int, list[list[int]], list[int]]:
    """Channels, each with records (0) and barriers (ids), and the turns in which they are read; -1:
    time is over for what is being aligned."""
    channels = draw(st.integers(1, 4))
    ids = range(1, draw(st.integers(1, 4)) + 1)
    told: list[list[int]] = []
    for _ in range(channels):
        channel: list[int] = []
        for checkpoint_id in ids:
            channel += [0] * draw(st.integers(0, 3))
            channel.append(checkpoint_id)
        told.append(channel + [0] * draw(st.integers(0, 2)))
    turns = draw(st.lists(st.integers(-1, channels - 1), max_size=60))
    return channels, told, turns


def read_all(
    task: Task,
    told: Sequence[Sequence[int]],
    turns: Sequence[int],
    unaligned: set[tuple[int, int]],
) -> dict[int, tuple[list[int], list[int]]]:
    """Checkpoint -> how many records of each channel were read before its snapshot, and how many
    are recorded as in flight besides."""
    waiting = [deque(channel) for channel in told]
    read = [0] * len(told)
    recorded: dict[int, list[int]] = {}
    found: dict[int, tuple[list[int], list[int]]] = {}
    known = 0
    order = [*turns, *(channel for _ in range(200) for channel in range(len(told)))]
    for channel in order:
        if channel < 0:
            task.time_is_over()
            known = note_performed(task, known, list(read), recorded, found)
            continue
        if not waiting[channel] or channel in task.blocked:
            continue
        element = waiting[channel].popleft()
        if element == 0:
            for checkpoint_id in recorded:
                pending = task.handler.pending  # type: ignore[attr-defined]
                is_current = pending is not None and pending.checkpoint_id == checkpoint_id
                if is_current and task.handler.is_recording(channel):
                    recorded[checkpoint_id][channel] += 1
            read[channel] += 1
        else:
            is_unaligned = (element, channel) in unaligned
            barrier = Barrier(element, 0, unaligned=is_unaligned, alignment_timeout=300)
            task.handler.barrier(channel, barrier)
            known = note_performed(task, known, list(read), recorded, found)
        if not any(waiting):
            break
    return found


def note_performed(
    task: Task,
    known: int,
    read: list[int],
    recorded: dict[int, list[int]],
    found: dict[int, tuple[list[int], list[int]]],
) -> int:
    """Of the lines from the first that are not *known*; how many are then."""
    for line in task.done[known:]:
        if line.startswith("performed"):
            checkpoint_id = int(line.split()[1])
            recorded[checkpoint_id] = [0] * len(read)
            found[checkpoint_id] = read, recorded[checkpoint_id]
    return len(task.done)


@settings(max_examples=300)
@given(inputs(), st.sets(st.tuples(st.integers(1, 4), st.integers(0, 3))))
def test_checkpoint_has_exactly_the_records_before_its_barriers(
    drawn: tuple[int, list[list[int]], list[int]], unaligned: set[tuple[int, int]]
) -> None:
    """State and data in flight together, for any order of reading channels and any overtaking by
    barriers."""
    channels, told, turns = drawn
    task = Task(channels)
    found = read_all(task, told, turns, unaligned)
    completed = {int(line.split()[1]) for line in task.done if line.startswith("recorded")}
    dropped = {int(line.split()[1]) for line in task.done if line.startswith("aborted")}
    for checkpoint_id, (read, in_flight) in found.items():
        if checkpoint_id in dropped:
            continue
        has_overtaken = any((checkpoint_id, channel) in unaligned for channel in range(channels))
        assert checkpoint_id in completed or not has_overtaken
        before = [channel[: channel.index(checkpoint_id)].count(0) for channel in told]
        assert [a + b for a, b in zip(read, in_flight, strict=True)] == before
    latest = max(max(channel) for channel in told)
    assert latest in found
    assert latest not in dropped
