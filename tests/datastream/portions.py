"""A program that collects numbers, of which the test lets out a portion at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from flinkray.client import ClusterClient
from flinkray.datastream import (
    Configuration,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.datastream.connectors import IteratorSource
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import settings

PORTION, PORTIONS = 4, 6


def portions(*chosen: int) -> list[int]:
    """The numbers in these."""
    return [PORTION * portion + n for portion in chosen for n in range(PORTION)]


class Passing(MapFunction[int, int]):
    """Notes which attempt has passed which numbers on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        self._attempt = runtime_context.get_attempt_number()

    def map(self, value: int) -> int:
        (self._folder / f"passed-{self._attempt}-{value}").touch()
        return value


class Portions:
    """Takes checkpoints when the test says so.  Its client reads when the test does."""

    def __init__(
        self, cluster: ClusterClient, folder: Path, *, savepoint: str | None = None
    ) -> None:
        """*savepoint*: to start from.  *folder* is the program's own."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        start = {"execution.state-recovery.path": savepoint or ""}
        env.configure(Configuration.from_dict({**settings(folder / "checkpoints", "1 h"), **start}))

        def numbers(number: int, offset: int) -> Iterator[int]:
            for n in range(offset, PORTION * PORTIONS):
                while not (folder / f"portion-{n // PORTION}").exists():
                    time.sleep(0.002)
                yield n

        source = env.set_parallelism(1).from_source(
            IteratorSource(numbers), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )
        passing = source.uid("numbers").map(Passing(folder), Types.LONG()).uid("passing")
        results = passing.execute_and_collect()
        assert isinstance(results, ClusterResults)
        self.results = results
        self.job = cluster.job(results.job_id)

    def let_out(self, portion: int, *, attempt: int = 0) -> None:
        """Wait until that attempt, or a later one, has passed it on: barriers come behind it."""
        (self._folder / f"portion-{portion}").touch()
        last = portions(portion)[-1]

        def is_passed() -> bool:
            passed = self._folder.glob(f"passed-*-{last}")
            return any(int(path.name.split("-")[1]) >= attempt for path in passed)

        wait_until(is_passed, 300, f"attempt {attempt} to pass {last} on")

    def let_out_all(self) -> None:
        for portion in range(PORTIONS):
            (self._folder / f"portion-{portion}").touch()

    def show(self) -> list[int]:
        """As many results as a portion has, after a checkpoint."""
        self.job.trigger_checkpoint(timeout=300)
        return list(islice(self.results, PORTION))
