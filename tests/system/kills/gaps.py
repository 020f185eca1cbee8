"""How long an output stands still, as its last task sees it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flinkray.datastream import RuntimeContext
from flinkray.datastream.functions import MapFunction

LEAST = 0.005
"""Seconds between two records that are worth a line."""


class Gaps(MapFunction[Any, Any]):
    """Gives on what it gets, and writes down the longest waits between two records: when one was
    over, and how long it was.  What it waited for its first record stands apart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self._file = self._folder / f"gaps-{runtime_context.get_index_of_this_subtask()}"
        self._began = time.time()
        self._last: float | None = None
        with self._file.with_name(f"began-{self._file.name}").open("a") as file:
            file.write(f"{self._began}\n")

    def map(self, value: Any) -> Any:
        now = time.time()
        if self._last is None:
            self._write(self._file.with_name(f"first-{self._file.name}"), now, now - self._began)
        elif now - self._last > LEAST:
            self._write(self._file, now, now - self._last)
        self._last = now
        return value

    @staticmethod
    def _write(path: Path, now: float, wait: float) -> None:
        with path.open("a") as file:
            file.write(f"{now} {wait}\n")


def starts(folder: Path) -> list[int]:
    """How many attempts of each subtask have begun, of whatever execution graph."""
    return [len(file.read_text().splitlines()) for file in folder.glob("began-*")]


Gap = tuple[float, float]
"""When it was over, and how long it was; seconds."""


def gaps(folder: Path) -> list[Gap]:
    """All that were written down between two records."""
    return _read(folder, "gaps-*")


def waits_for_the_first(folder: Path) -> list[Gap]:
    """From the start of a subtask to its first record."""
    return _read(folder, "first-*")


def _read(folder: Path, names: str) -> list[Gap]:
    lines = [line.split() for file in folder.glob(names) for line in file.read_text().splitlines()]
    return [(float(at), float(gap)) for at, gap in lines]


def longest(found: Iterable[Gap], begin: float, end: float) -> float:
    """Of those that were over between these times, or began there."""
    within = (gap for at, gap in found if at >= begin and at - gap <= end)
    return max(within, default=LEAST)


def quantile(values: Iterable[float], share: float) -> float:
    of_all = sorted(values)
    return of_all[min(len(of_all) - 1, int(share * len(of_all)))]
