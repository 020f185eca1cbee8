"""The numbers from 0 on from sources of every kind, and sinks that give back what was put in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flinkray.datastream import DataStream, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import (
    DataGeneratorSource,
    FileSource,
    IteratorSource,
    NumberSequenceSource,
    Source,
)
from flinkray.datastream.functions import MapFunction

FILES = 8


class Paced(MapFunction[int, int]):
    """Lets so many records a second through, in each subtask."""

    def __init__(self, per_second: float) -> None:
        self._pause = 1 / per_second
        self._next = 0.0

    def map(self, value: int) -> int:
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(self._next, now) + self._pause
        return value


Numbers = tuple[DataStream, int]
"""A stream of numbers, and how many of them, one after the other, come from one reader."""


def _from(env: StreamExecutionEnvironment, source: Source[Any]) -> DataStream:
    no_watermarks = WatermarkStrategy.no_watermarks()
    return env.from_source(source, no_watermarks, "numbers", Types.LONG()).uid("numbers")


def generated(
    env: StreamExecutionEnvironment, count: int, per_second: float | None, folder: Path
) -> Numbers:
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, count, per_second)
    return _from(env, source), count // env.get_parallelism()


def sequence(
    env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path
) -> Numbers:
    numbers = _from(env, NumberSequenceSource(0, count - 1))
    parts = env.get_parallelism()
    return numbers.map(Paced(per_second / parts), Types.LONG()).uid("pace"), count // parts


def collection(
    env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path
) -> Numbers:
    numbers = env.from_collection(range(count), Types.LONG()).uid("numbers")
    paced = numbers.map(Paced(per_second), Types.LONG()).uid("pace")
    return paced.set_parallelism(1), count


def iterator(
    env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path
) -> Numbers:
    parts = env.get_parallelism()

    def make_iterator(number: int, offset: int) -> Iterator[int]:
        pace = Paced(per_second / parts)
        begin, end = count * number // parts, count * (number + 1) // parts
        return map(pace.map, range(begin + offset, end))

    return _from(env, IteratorSource(make_iterator, parts)), count // parts


def files(env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path) -> Numbers:
    folder = folder / "numbers"
    folder.mkdir()
    of_file = count // FILES
    for number in range(FILES):
        of_this = range(number * of_file, (number + 1) * of_file)
        (folder / str(number)).write_text("".join(f"{n}\n" for n in of_this))
    lines = env.from_source(
        FileSource(str(folder)), WatermarkStrategy.no_watermarks(), "numbers", Types.STRING()
    ).uid("numbers")
    numbers = lines.map(int, Types.LONG()).uid("numbers of lines")
    pace = Paced(per_second / env.get_parallelism())
    return numbers.map(pace, Types.LONG()).uid("pace"), of_file


SourceOfNumbers = Callable[[StreamExecutionEnvironment, int, float, Path], Numbers]

SOURCES: dict[str, SourceOfNumbers] = {
    "generated": generated,
    "sequence": sequence,
    "collection": collection,
    "iterator": iterator,
    "files": files,
}
"""Of so many numbers, so many of them a second in all, with a folder for what they need; the count
is a multiple of 8."""
