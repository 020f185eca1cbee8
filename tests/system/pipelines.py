"""PySpark pipelines that do what a test needs, as a user would write them."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS = 1000


def expected_rows() -> list[tuple[int, int]]:
    return [(i, 2 * i) for i in range(ROWS)]


def doubled(spark: Any) -> Any:
    """Ends by itself."""
    return spark.range(0, ROWS, 1, 4).selectExpr("id", "id * 2 as twice")


def with_ballast(pipeline: Callable[[Any], Any], size: int) -> Callable[[Any], Any]:
    """The same, with so many bytes to carry along that it looks at."""
    ballast = os.urandom(size)
    checksum = zlib.crc32(ballast)

    def carrying(spark: Any) -> Any:
        assert zlib.crc32(ballast) == checksum
        return pipeline(spark)

    return carrying


class Gate:
    """Tasks of a gated pipeline wait in the executors until the test opens the gate.

    A directory that test and executors share: each task that has begun leaves a file there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)

    def open(self) -> None:
        (self.directory / "open").touch()

    def waiting_tasks(self) -> list[str]:
        return sorted(p.name for p in self.directory.glob("task-*"))

    def pipeline(self) -> Callable[[Any], Any]:
        directory = str(self.directory)

        def gated(spark: Any) -> Any:
            def wait(batches: Iterator[Any]) -> Iterator[Any]:
                Path(directory, f"task-{os.getpid()}-{time.monotonic_ns()}").touch()
                while not Path(directory, "open").exists():
                    time.sleep(0.02)
                yield from batches

            source = spark.range(0, ROWS, 1, 4)
            return source.mapInArrow(wait, "id long").selectExpr("id", "id * 2 as twice")

        return gated
