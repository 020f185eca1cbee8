"""One subtask's state on the heap: what its snapshots and restores take, and hold up.

Text keys with about 100 bytes each: 1,000,000 are Flink's 101 MB.  While a thread writes a whole
snapshot to a file, the task's thread goes on updating: its longest pauses are those of processing.
Then 1 % of the keys change, and the changes are written; then all is restored by one, two and four
subtasks.

A job in two slots has its state in two processes: so half of Flink's keys stand beside its figures.
"""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from _results import Figure, Results

from flinkray.checkpoint.handles import KeyedStateHandle, KeyedStatePart
from flinkray.checkpoint.state_files import StateOutput
from flinkray.checkpoint.state_format import read_keyed_state, write_keyed_state
from flinkray.core.key_group_ranges import KeyGroupRange, key_group_range
from flinkray.state import HeapKeyedStateBackend, ValueStateDescriptor

GROUPS = 128
ALL = KeyGroupRange(0, GROUPS - 1)
VALUE = "x" * 88
PORTION = 1000
"""Updates between two looks at the clock."""
FLINK_SECONDS = {500_000: (0.226, 0.75), 2_500_000: (0.898, 2.1)}
"""Keys of each of two subtasks -> seconds of a checkpoint, and of a restore."""


@dataclass
class Checkpoint:
    """Seconds, and what was written."""

    synchronous: float
    seconds: float
    pause: float
    """Of processing, p99 of the time that so many updates take."""
    longest: float
    """The longest of these."""
    part: KeyedStatePart

    @property
    def size(self) -> int:
        """Bytes."""
        return self.part.location.size


@dataclass
class Round:
    """A whole snapshot, then one of 1 % of the keys, then restores."""

    whole: Checkpoint
    changes: Checkpoint
    restore: dict[int, float]
    """By parallelism: seconds of the slowest subtask."""
    alone: float
    """Processor seconds of a whole snapshot while nothing else goes on."""


class State:
    """What is snapshotted, and goes on changing."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self.backend = HeapKeyedStateBackend(GROUPS, ALL)
        self._state = self.backend.state(ValueStateDescriptor("state"))
        self.update(range(keys), VALUE)

    def update(self, numbers: range, text: str) -> None:
        """The keys of these numbers."""
        for number in numbers:
            self.backend.context.key = f"key-{number:08d}"
            self._state.update(f"{text}{number % 1000:03d}")

    def alone(self, path: Path) -> float:
        """Processor seconds of a whole snapshot while the task waits."""
        begun = time.thread_time()
        with StateOutput(str(path), 20_000) as output:
            write_keyed_state(self.backend.capture().stream(), output)
        return time.thread_time() - begun

    def checkpoint(self, path: Path, number: int, since: int | None = None) -> Checkpoint:
        """Written by a thread, while this one updates as fast as it can."""
        begun = time.perf_counter()
        capture = self.backend.capture(number, since)
        captured = time.perf_counter()
        parts: list[KeyedStatePart] = []

        def write() -> None:
            with StateOutput(str(path), 20_000) as output:
                location = write_keyed_state(capture.stream(), output)
            parts.append(KeyedStatePart(location, since is None))

        writer = threading.Thread(target=write)
        writer.start()
        pauses = [0.0, 0.0]
        begin = 0
        while writer.is_alive():
            before = time.perf_counter()
            self.update(range(begin, begin + PORTION), VALUE)
            pauses.append(time.perf_counter() - before)
            begin = (begin + PORTION) % self.keys
        writer.join()
        seconds = time.perf_counter() - begun
        return Checkpoint(
            captured - begun, seconds, quantiles(pauses, n=100)[-1], max(pauses), parts[0]
        )


def one_round(keys: int, folder: Path) -> Round:
    """Of a state of its own."""
    state = State(keys)
    alone = state.alone(folder / "alone")
    whole = state.checkpoint(folder / "whole", 1)
    state.backend.capture(2, 1).write()
    state.update(range(0, keys, 100), VALUE)
    changes = state.checkpoint(folder / "changes", 3, 2)
    del state
    gc.collect()
    handle = KeyedStateHandle(ALL.first, ALL.last, (whole.part, changes.part))
    restore = {
        parallelism: max(
            restored(handle, key_group_range(GROUPS, parallelism, subtask))
            for subtask in range(parallelism)
        )
        for parallelism in (1, 2, 4)
    }
    return Round(whole, changes, restore, alone)


def restored(handle: KeyedStateHandle, key_groups: KeyGroupRange) -> float:
    """Seconds until a subtask of these key groups can go on."""
    begun = time.perf_counter()
    backend = HeapKeyedStateBackend(GROUPS, key_groups)
    backend.restore(read_keyed_state([handle], key_groups))
    backend.state(ValueStateDescriptor("state"))
    return time.perf_counter() - begun


def tell(keys: int, rounds: list[Round], scale: float, results: Results) -> None:
    """Print medians.

    Args:
        scale: how much longer everything takes here than where Flink was measured.
    """
    whole = median(r.whole.seconds for r in rounds)
    alone = median(r.alone for r in rounds)
    pause = median(r.whole.pause for r in rounds)
    part = median(r.changes.size / r.whole.size for r in rounds)
    changes = median(r.changes.seconds for r in rounds)
    print(f"{keys:,} keys, {rounds[0].whole.size / 1e6:.0f} MB:")
    print(f"  synchronous part {median(r.whole.synchronous for r in rounds) * 1e3:.2f} ms")
    longest = max(r.whole.longest for r in rounds)
    print(
        f"  whole snapshot {whole:.2f} s, {alone:.2f} s of the processor's time if the task waits"
    )
    print(f"  pauses of processing, p99: {pause * 1e3:.0f} ms; the longest {longest * 1e3:.0f} ms")
    print(f"  1 % changed: {changes * 1e3:.0f} ms, {part:.1%} of the bytes")
    restore = [median(r.restore[parallelism] for r in rounds) for parallelism in (1, 2, 4)]
    kept = f"{keys:,} text keys"
    if keys in FLINK_SECONDS:
        theirs = FLINK_SECONDS[keys][0] * scale
        shown, peer = f"{whole:.2f} s, {{}}", f"Flink: {theirs:.2f} s, scaled"
        what = f"a whole snapshot of {kept} while the task goes on, over Flink's"
        figure = Figure(f"whole {keys}", what, whole / theirs, 0.7, "x", shown=shown, peer=peer)
        results.add(figure)
    what = f"{kept}: pauses of processing during a whole snapshot, p99"
    results.add(Figure(f"pause {keys}", what, pause * 1e3, 50, "ms"))
    what = f"{kept}: bytes written where 1 % of the keys have changed"
    results.add(Figure(f"changes {keys}", what, part * 100, 5, "%"))
    what = f"restore of {kept} by 1, 2, 4 subtasks"
    shown = ", ".join(f"{seconds:.2f} s" for seconds in restore)
    results.add(Figure(f"restore {keys}", what, restore[0], shown=shown))
