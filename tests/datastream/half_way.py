"""A program that checks itself, and waits half way until the test has done what it is about."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flinkray.client import ClusterClient, JobHandle
from flinkray.datastream import (
    Configuration,
    DataStream,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.datastream.connectors import IteratorSource
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import Result, Tally, by_key, expected, settings

COUNT = 2_000


class HeldUp(MapFunction[int, int]):
    """Of the second half of the numbers, the last subtask lets none pass, and no barrier behind
    them, as long as a file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def open(self, runtime_context: Any) -> None:
        index, parallelism = (
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_number_of_parallel_subtasks(),
        )
        self._holds = index == parallelism - 1

    def map(self, value: int) -> int:
        while self._holds and value % (COUNT // 2) >= COUNT // 4 and self._file.exists():
            self._file.with_suffix(".holds").touch()
            time.sleep(0.001)
        return value


def halves(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    """What :class:`HalfWay` executes: it has its gates in that folder."""
    goes_on, half = folder / "goes-on", COUNT // 2

    def numbers(number: int, offset: int) -> Iterator[int]:
        for n in range(offset, half):
            while n >= half // 2 and not goes_on.exists():
                time.sleep(0.002)
            yield number * half + n

    source = IteratorSource(numbers, 2)
    stream = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    held = stream.map(HeldUp(folder / "holds-up"), Types.LONG()).uid("held")
    return by_key(held, Tally(half))


def all_run(job: JobHandle) -> bool:
    """Whether all tasks of a job run."""
    found = [e.state for vertex in job.details().vertices for e in vertex.executions]
    return bool(found) and all(state is ExecutionState.RUNNING for state in found)


def wait_for_tasks(job: JobHandle) -> None:
    """Wait until all tasks of a job run: a checkpoint that is triggered before that is declined."""
    wait_until(lambda: all_run(job), 300, "all tasks to run")


class HalfWay:
    """Two readers have a half of the numbers each, and give a half of that at once.  The rest comes
    when it may; barriers pass meanwhile."""

    def __init__(
        self,
        cluster: ClusterClient,
        folder: Path,
        *,
        savepoint: str | None = None,
        parallelism: int = 2,
        settings_of: Mapping[str, str] | None = None,
    ) -> None:
        """*savepoint*: to start from.  *folder* is the program's own."""
        folder.mkdir(exist_ok=True)
        self.checkpoints = folder / "checkpoints"
        self._goes_on, self._holds = folder / "goes-on", folder / "holds-up"
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.configure(
            Configuration.from_dict(
                {
                    **settings(self.checkpoints, "1 h"),
                    # also small state is in files
                    "execution.checkpointing.data-inline-threshold": "0",
                    "execution.state-recovery.path": savepoint or "",
                    **(settings_of or {}),
                }
            )
        )
        results = halves(env.set_parallelism(parallelism), folder).execute_and_collect()
        assert isinstance(results, ClusterResults)
        self.results = results
        self.job = cluster.job(results.job_id)

    def told(self) -> CheckpointsOverview:
        """Of its checkpoints."""
        return wait_until(lambda: self.job.details().checkpoints, 300, "its checkpoints")

    def take_checkpoints(self) -> str:
        """The last of two; the first one has its pointer when the second is stored."""
        wait_for_tasks(self.job)
        self.job.trigger_checkpoint(timeout=300)
        return self.job.trigger_checkpoint(timeout=300)

    def go_on(self) -> None:
        """To the end."""
        self._goes_on.touch()

    def hold(self) -> None:
        """Go on, but for one subtask, which does not let barriers pass.  The reader of the other
        half has ended then: a savepoint that is wanted as it ends is declined."""
        self._holds.touch()
        self.go_on()
        wait_until(self._holds.with_suffix(".holds").exists, 300, "a subtask to hold")
        wait_until(self._has_ended, 300, "the other reader to end")

    def _has_ended(self) -> bool:
        of_all = (it.state for v in self.job.details().vertices for it in v.executions)
        return ExecutionState.FINISHED in of_all

    def release(self) -> None:
        """End that."""
        self._holds.unlink(missing_ok=True)


def is_right(results: list[Result]) -> bool:
    """Each number counts once, and each key is told once."""
    return sorted(results) == sorted(expected(COUNT))
