"""Numbers of which a test lets out a part at a time: what dies does so before all are out.

On a slow machine all of them could be written by the first checkpoint, and none would be left for
what the test does next.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.generated import _GeneratorReader
from flinkray.streaming.sources.source import NOTHING_NOW, Polled, ReaderContext, SourceReader
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until

PARTS = 3
LET_OUT = [0]
"""Number of parts that the last source may give out."""


def let_out() -> list[int]:
    """Return :data:`LET_OUT` of the module. A class that has travelled to a task by value has other
    globals than the module, also in this process."""
    of_module: list[int] = importlib.import_module("tests.datastream.held_numbers").LET_OUT
    return of_module


class HeldNumbers(DataGeneratorSource):
    """Each subtask's numbers come in three parts, each when the test says so."""

    def __init__(self, generate: Callable[[int], Any], count: int, per_second: float) -> None:
        super().__init__(generate, count, per_second)
        let_out()[0] = 0

    def create_reader(self, context: ReaderContext) -> SourceReader[Slice]:
        assert self._rate is not None
        assert self._length % (PARTS * context.parallelism) == 0
        part = self._length // context.parallelism // PARTS
        return _HeldReader(context, self.records, self._rate / context.parallelism, part)


class _HeldReader(_GeneratorReader):
    def __init__(
        self, context: ReaderContext, read: Callable[[int, int], Block], rate: float, part: int
    ) -> None:
        super().__init__(context, read, rate)
        self._part = part

    def read(self, max_records: int) -> Polled:
        parts = PARTS - let_out()[0]
        position, end = self.remaining()
        free = end - parts * self._part - position
        if free <= 0 < end - position:
            return NOTHING_NOW
        return super().read(min(max_records, max(free, 1)))

    def next_poll_time(self) -> float | None:
        at = super().next_poll_time()
        return at if at is None else max(at, time.time() + 0.01)


def crash_after_each_part(cluster: ThreadedCluster, kind: str, seen: Callable[[], int]) -> None:
    """Processes of that *kind* die in the midst of the first and the second part.

    Args:
        seen: how many numbers have come out at the far end.
    """
    for part in range(1, PARTS):
        before = seen()
        LET_OUT[0] += 1
        assert LET_OUT[0] == part, "numbers of later parts were let out"
        wait_until(lambda before=before: seen() > before, 300, "more numbers")  # type: ignore[misc]
        cluster.crash(kind)
    LET_OUT[0] += 1
