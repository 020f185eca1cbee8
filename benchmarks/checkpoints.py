"""Checkpoints of keyed state on the heap: how long they take, hold up, and how much they write.

    python benchmarks/checkpoints.py [--keys N ...] [--rounds N]

One subtask's state, text keys with about 100 bytes each: 1,000,000 keys are Flink's 101 MB.  While
a thread writes a whole snapshot to a file, the task's thread goes on updating: its longest pauses
are those of processing.  Then 1 % of the keys change, and the changes are written; then all is
restored by one, two and four subtasks.

Flink's figures were measured on another machine: they are scaled by what pyarrow's group-by takes
here and took there.  A job in two slots has its state in two processes, so each writes half.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _machine import facts  # noqa: E402

from flinkray.checkpoint.handles import KeyedStateHandle, KeyedStatePart  # noqa: E402
from flinkray.checkpoint.keyed_state_format import read_keyed_state, write_keyed_state  # noqa: E402
from flinkray.checkpoint.state_files import StateOutput  # noqa: E402
from flinkray.core.key_groups import KeyGroupRange, key_group_range  # noqa: E402
from flinkray.state import HeapKeyedStateBackend, ValueStateDescriptor  # noqa: E402

GROUPS = 128
ALL = KeyGroupRange(0, GROUPS - 1)
VALUE = "x" * 88
PORTION = 1000
"""Updates between two looks at the clock."""
PYARROW_THERE = 333e6
"""Rows per second of its group-by, where Flink was measured."""
FLINK_SECONDS = {1_000_000: (0.226, 0.75), 5_000_000: (0.898, 2.1)}
"""Keys -> seconds of a checkpoint, and of a restore."""


@dataclass
class Checkpoint:
    """Seconds, and what was written."""

    synchronous: float
    seconds: float
    pause: float
    """Of processing, p99 of the time that so many updates take."""
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
        return Checkpoint(captured - begun, seconds, quantiles(pauses, n=100)[-1], parts[0])


def one_round(keys: int, folder: Path) -> Round:
    """Of a state of its own."""
    state = State(keys)
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
    return Round(whole, changes, restore)


def restored(handle: KeyedStateHandle, key_groups: KeyGroupRange) -> float:
    """Seconds until a subtask of these key groups can go on."""
    begun = time.perf_counter()
    backend = HeapKeyedStateBackend(GROUPS, key_groups)
    backend.restore(read_keyed_state([handle], key_groups))
    backend.state(ValueStateDescriptor("state"))
    return time.perf_counter() - begun


def group_by() -> float:
    """Rows per second of pyarrow's."""
    keys = np.arange(10_000_000) % 1000
    table = pa.table({"key": keys, "value": keys})
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        table.group_by("key").aggregate([("value", "sum")])
        seconds.append(time.perf_counter() - begun)
    return len(keys) / median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[500_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name, value in facts("flinkray", "pyarrow").items():
        print(f"{name:<28}{value}")
    here = group_by()
    print(f"pyarrow's group-by: {here / 1e6:.0f} M rows/s ({PYARROW_THERE / 1e6:.0f} M there)")
    are_met = True
    for keys in options.keys:
        with tempfile.TemporaryDirectory() as folder:
            rounds = []
            for number in range(options.rounds):
                path = Path(folder, str(number))
                path.mkdir()
                rounds.append(one_round(keys, path))
        are_met &= told(keys, rounds, PYARROW_THERE / here)
    sys.exit(0 if are_met else 1)


def told(keys: int, rounds: list[Round], scale: float) -> bool:
    """Print medians, and whether goals are met."""
    whole = median(r.whole.seconds for r in rounds)
    pause = median(r.whole.pause for r in rounds)
    part = median(r.changes.size / r.whole.size for r in rounds)
    changes = median(r.changes.seconds for r in rounds)
    print(f"{keys:,} keys, {rounds[0].whole.size / 1e6:.0f} MB:")
    print(f"  synchronous part {median(r.whole.synchronous for r in rounds) * 1e3:.2f} ms")
    print(f"  whole snapshot {whole:.2f} s; pauses of processing, p99: {pause * 1e3:.0f} ms")
    print(f"  1 % changed: {changes * 1e3:.0f} ms, {part:.1%} of the bytes")
    for parallelism in (1, 2, 4):
        seconds = median(r.restore[parallelism] for r in rounds)
        print(f"  restore by {parallelism}: {seconds:.2f} s")
    goals = {"pause at most 50 ms": pause <= 0.05, "changes at most 5 %": part <= 0.05}
    if keys in FLINK_SECONDS:
        theirs = FLINK_SECONDS[keys][0] * scale
        goals[f"whole at most 0.7 x Flink's {theirs:.2f} s (is {whole / theirs:.2f})"] = (
            whole <= 0.7 * theirs
        )
    for name, is_met in goals.items():
        print(f"  goal: {name}: {'met' if is_met else 'MISSED'}")
    return all(goals.values())


if __name__ == "__main__":
    main()
