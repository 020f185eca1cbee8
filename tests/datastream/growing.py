"""A program that checks itself while it runs with one parallelism after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from flinkray.client import ClusterClient
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.datastream.connectors import IteratorSource
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import Tally, by_key, differences, newest, settings

SPLITS, OF_SPLIT = 4, 4_000
COUNT = SPLITS * OF_SPLIT
COLLECTOR = "Data stream collect sink"


class Growing:
    """An elastic job of at most four subtasks.  Its numbers come slowly, and of each split a half
    only, until :meth:`ends_exactly_once`."""

    def __init__(
        self,
        cluster: ClusterClient,
        folder: Path,
        *,
        max_parallelism: int | None = None,
        savepoint: str = "",
    ) -> None:
        """*folder* is the program's own.  *savepoint*: the one it goes on from, if any."""
        self._checkpoints, self._begun = folder / "checkpoints", folder / "begun"
        self._goes_on = folder / "goes-on"
        self._begun.mkdir(parents=True)
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        elastic = {
            **settings(self._checkpoints, "100 ms"),
            "jobmanager.scheduler": "adaptive",
            "execution.state-recovery.path": savepoint,
        }
        env.configure(Configuration.from_dict(elastic)).set_parallelism(4)
        if max_parallelism is not None:
            env.set_max_parallelism(max_parallelism)
        begun, goes_on = self._begun, self._goes_on

        def numbers(number: int, offset: int) -> Iterator[int]:
            with (begun / str(number)).open("a") as file:
                file.write(f"{offset}\n")
            for n in range(offset, OF_SPLIT):
                while n >= OF_SPLIT // 2 and not goes_on.exists():
                    time.sleep(0.002)
                if not goes_on.exists():
                    time.sleep(0.002)
                yield number * OF_SPLIT + n

        stream = env.from_source(
            IteratorSource(numbers, SPLITS),
            WatermarkStrategy.no_watermarks(),
            "numbers",
            Types.LONG(),
        ).uid("numbers")
        results = by_key(stream, Tally(OF_SPLIT, echoes=True)).execute_and_collect()
        assert isinstance(results, ClusterResults)
        self._results = results
        self.job = cluster.job(results.job_id)

    def runs_with(self, parallelism: int) -> None:
        """Wait until it does, and two checkpoints of that are complete."""

        def runs() -> bool:
            vertices = self.job.details().vertices
            executions = [e for vertex in vertices for e in vertex.executions]
            return (
                len(vertices) == 3
                and all(
                    vertex.parallelism == (1 if vertex.name == COLLECTOR else parallelism)
                    for vertex in vertices
                )
                and all(e.state is ExecutionState.RUNNING for e in executions)
            )

        wait_until(runs, 300, f"{parallelism} subtasks to run")
        before = newest(self._checkpoints)
        wait_until(lambda: newest(self._checkpoints) > before + 1, 300, "two checkpoints")

    def resize(self, parallelism: int) -> None:
        """As a user asks for it."""
        names = [v.name for v in self.job.details().vertices if v.name != COLLECTOR]
        self.job.resize(dict.fromkeys(names, (1, parallelism)))

    def is_cancelled(self) -> None:
        """It ends without its results."""
        self.job.cancel()
        self.job.wait(300)
        self._results.close()

    def ends_exactly_once(self, *, changes: int) -> None:
        """Let it end: each number has come out once, and counts once, and in order.  It has begun
        so many times anew at least, and then never from before the time before."""
        self._goes_on.touch()
        assert differences(self._results, COUNT) == ""
        begun = [list(map(int, it.read_text().split())) for it in sorted(self._begun.iterdir())]
        assert len(begun) == SPLITS
        assert all(offsets == sorted(offsets) for offsets in begun), begun
        assert max(map(len, begun)) > changes
        assert all(offsets[-1] > 0 for offsets in begun), begun
