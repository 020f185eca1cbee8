"""Stories of operators that keep keyed state: records, watermarks, whole snapshots and changes,
failures, other parallelism.  After each step the results are those of a naive evaluation."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import repeat
from operator import add
from typing import Any

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.key_group_assignment import key_group_of
from flinkray.streaming.operators.operator import OperatorState, OperatorStateCapture
from flinkray.streaming.records.elements import Columns
from tests.streaming.subtasks_of_one import GROUPS, Subtasks

NO_TIME = -(10**9)
"""A watermark before the first one."""


class Story:
    """Plays one, with a naive evaluator beside it.

    Args:
        naive: has ``process(columns)``, ``process_watermark(timestamp, key_groups)``,
            ``restored()``, and ``results``.
    """

    def __init__(self, subtasks: Subtasks, naive: Any) -> None:
        self.subtasks = subtasks
        self.naive = naive
        self._watermarks = [NO_TIME] * subtasks.parallelism
        self._checkpoints: dict[int, Checkpoint] = {}
        """Of the subtasks as they are now."""
        self._last: Checkpoint | None = None
        self._number = 0
        self._first = copy.deepcopy(naive)

    def play(self, *step: Any) -> None:
        match step:
            case ("snapshot", ago, is_written_later):
                self._number += 1
                since = (
                    [None, *self._checkpoints][-ago] if 0 < ago <= len(self._checkpoints) else None
                )
                captures = self.subtasks.capture(self._number, since)
                begin = None if since is None else self._checkpoints[since]
                self._last = Checkpoint(captures, begin, copy.deepcopy(self.naive))
                if not is_written_later:
                    self._last.states()
                self._checkpoints[self._number] = self._last
            case ("restore", parallelism):
                self._restore(parallelism)
            case ("rescale", parallelism):
                self.play("snapshot", 0, False)
                self._restore(parallelism)
            case ("batch", columns):
                self.subtasks.process(columns)
                self.naive.process(columns)
            case ("second", (_, columns)):
                self.subtasks.process(columns, on=1)
                self.naive.process_second(columns)
            case ("rows", (_, columns)):
                self.subtasks.process(columns, as_rows=True)
                self.naive.process(columns)
            case ("watermark", timestamp, place):
                subtask = None if place is None else place % self.subtasks.parallelism
                known = self._watermarks if subtask is None else self._watermarks[subtask:][:1]
                timestamp = max(timestamp, *known)
                groups = self.subtasks.watermark(timestamp, subtask)
                self.naive.process_watermark(timestamp, groups)
                for number in range(len(self._watermarks)):
                    if subtask in (None, number):
                        self._watermarks[number] = timestamp
        found, self.naive.results[:], expected = (
            Counter(map(comparable, self.subtasks.records())),
            [],
            Counter(map(comparable, self.naive.results)),
        )
        assert found == expected, step

    def _restore(self, parallelism: int) -> None:
        last = self._last
        self._checkpoints.clear()
        if last is None:
            self.subtasks.restart(parallelism, [])
        elif parallelism == last.parallelism:
            self.subtasks.restart(parallelism, last.states(), self._number)
            self._checkpoints[self._number] = last
        else:
            self.subtasks.restart(parallelism, last.states())
        self.naive = copy.deepcopy(self._first if last is None else last.naive)
        self.naive.restored()
        self._watermarks = [NO_TIME] * parallelism


class Checkpoint:
    """Captures of all subtasks, and those that they are about."""

    def __init__(
        self, captures: list[OperatorStateCapture], begin: Checkpoint | None, naive: Any
    ) -> None:
        self._captures = captures
        self._begin = begin
        self.naive = naive
        self._parts: list[list[OperatorState]] | None = None

    @property
    def parallelism(self) -> int:
        return len(self._captures)

    def parts(self) -> list[list[OperatorState]]:
        """Of each subtask: a whole snapshot, and changes after it."""
        if self._parts is None:
            begin = [[] for _ in self._captures] if self._begin is None else self._begin.parts()
            self._parts = [
                [capture.write()] if capture.is_whole else [*before, capture.write()]
                for before, capture in zip(begin, self._captures, strict=True)
            ]
        return self._parts

    def states(self) -> list[OperatorState]:
        """Operator state is always whole."""
        found = []
        for parts in self.parts():
            found += [OperatorState(part.keyed) for part in parts]
            found.append(OperatorState(None, parts[-1].operator))
        return found


def comparable(record: Any) -> Any:
    values, time = record
    return (*values, time)


class Timed:
    """Knows the watermark of each key group."""

    def __init__(self) -> None:
        self.watermarks = [NO_TIME] * GROUPS
        self.results: list[Any] = []

    def watermark(self, key: Any) -> int:
        """Of a key's group."""
        return self.watermarks[key_group_of(key, GROUPS)]

    def process_watermark(self, timestamp: int, groups: KeyGroupRange) -> None:
        for group in range(groups.first, groups.last + 1):
            self.watermarks[group] = max(self.watermarks[group], timestamp)
        self.time_went_on()

    def time_went_on(self) -> None:
        """Of some key groups."""

    def restored(self) -> None:
        self.watermarks = [NO_TIME] * GROUPS


class Rolling(Timed):
    """Every record gives its key's first row with the aggregate so far."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._combine: Any = {"sum": add, "min": min, "max": max}[how]
        self._kept: dict[Any, list[Any]] = {}

    def process(self, columns: Columns) -> None:
        times = columns.timestamps
        of_rows = repeat(None) if times is None else times.tolist()
        for row, time in zip(columns.batch.to_pylist(), of_rows, strict=False):
            known = self._kept.get(row["k"])
            if known is None:
                self._kept[row["k"]] = [row["k"], row["v"], row["other"]]
            else:
                known[1] = self._combine(known[1], row["v"])
            self.results.append((tuple(self._kept[row["k"]]), time))


class Windows(Timed):
    """Late records count for those of their windows that have not ended."""

    def __init__(self, size: int, slide: int) -> None:
        super().__init__()
        self.size, self.slide = size, slide
        self.open: dict[tuple[int, Any], list[Any]] = {}

    def process(self, columns: Columns) -> None:
        assert columns.timestamps is not None
        times = columns.timestamps.tolist()
        for row, time in zip(columns.batch.to_pylist(), times, strict=True):
            for start in range(time - time % self.slide, time - self.size, -self.slide):
                if start + self.size - 1 > self.watermark(row["k"]):
                    self.open.setdefault((start, row["k"]), []).append(row["v"])

    def time_went_on(self) -> None:
        for start, key in sorted(self.open):
            if start + self.size - 1 <= self.watermark(key):
                values = self.open.pop((start, key))
                self.fire(key, start, values)

    def fire(self, key: Any, start: int, values: list[Any]) -> None:
        end = start + self.size
        numbers = len(values), sum(values), min(values), max(values)
        self.results.append(((key, start, end, *numbers), end - 1))

    def restored(self) -> None:
        """The watermark is part of the state."""


class Rows(Windows):
    """Rows are kept, and late ones are told by the watermark since the last failure."""

    def __init__(self) -> None:
        super().__init__(10, 10)
        self.second: dict[tuple[int, Any], list[Any]] = {}

    def restored(self) -> None:
        self.watermarks = [NO_TIME] * GROUPS

    def fire(self, key: Any, start: int, values: list[Any]) -> None:
        self.results += (((key, value, start, start + 10), start + 9) for value in values)
