"""A process of the flights' stream is killed half way through the year, and nothing is lost.

The flights pass at a pace of about two months a second, through a job that takes a checkpoint every
half second.  Results are shown when a checkpoint covers them.  When those of June are there, one of
the job's task processes is ended with SIGKILL: what it had counted since the last checkpoint is
gone.  The job goes on from that checkpoint, and its results are compared with those of the same
program in this process, where nothing is killed.  ``make demo`` runs this, see ``flights_demo.py``.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import flights_stream
import pyarrow as pa
import ray
from ray.util.state import list_actors

import flinkray
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import (
    END_OF_INPUT,
    NOTHING_NOW,
    ArrowSource,
    Boundedness,
    FixedSplitsEnumerator,
    ReaderContext,
    SequentialReader,
    Source,
)

NAME = "flights as events"
CHECKPOINT_INTERVAL = 500
"""Milliseconds."""
FLIGHTS_PER_SECOND = 50_000.0
FLIGHTS_AT_ONCE = 2048
KILL_AFTER = datetime(2013, 6, 20, tzinfo=ZoneInfo("America/New_York")).timestamp() * 1000
"""The kill comes when results of this day are shown.  Half of the flights have left by July."""


class NotSurvivedError(flinkray.FlinkRayError):
    """The demonstration did not show what it is there for; the text says why."""


class Replay(Source[Any, int]):
    """The rows of a table in their order, at a pace; of the second half none is read before the
    file *gate* is there, so that nothing has ended before the kill.  One subtask reads."""

    def __init__(self, table: pa.Table, gate: Path) -> None:
        self._table = table
        self._gate = gate

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: Any, clock: Any) -> FixedSplitsEnumerator[int]:
        return FixedSplitsEnumerator(context, [0])

    def create_reader(self, context: ReaderContext) -> SequentialReader[int]:
        return _ReplayReader(context, self._table, self._gate)


class _ReplayReader(SequentialReader[int]):
    """A split is the row to go on with: that is what a checkpoint has of this source."""

    def __init__(self, context: ReaderContext, table: pa.Table, gate: Path) -> None:
        super().__init__(context)
        self._rows = ArrowSource(table)
        self._count = table.num_rows
        self._gate = gate
        self._begin = self._next = 0
        self._begun = 0.0

    def open_split(self, split: int) -> None:
        self._begin = self._next = split
        self._begun = self.context.clock.monotonic()

    def read(self, max_records: int) -> Any:
        if self._next == self._count:
            return END_OF_INPUT
        until = self._count if self._gate.exists() else self._count // 2
        until = min(until, self._next + FLIGHTS_AT_ONCE)
        elapsed = self.context.clock.monotonic() - self._begun
        if until == self._next or until > self._begin + elapsed * FLIGHTS_PER_SECOND:
            return NOTHING_NOW
        begin, self._next = self._next, until
        return self._rows.records(begin, until)

    def remaining(self) -> int:
        return self._next


def run(client: flinkray.ClusterClient, parallelism: int, say: Callable[[str], None]) -> None:
    """Print the year's worst days so far, as ``flights_stream.py`` does, with a kill in June.

    Raises:
        NotSurvivedError: nothing could be killed, or the results are not those without a kill.
    """
    flights = flights_stream.read_flights()
    with tempfile.TemporaryDirectory(prefix="flights-") as folder:
        gate = Path(folder) / "killed"
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        env.set_parallelism(parallelism).enable_checkpointing(CHECKPOINT_INTERVAL)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(Path(folder) / "checkpoints"))
        days = flights_stream.delays_per_airport(env.from_source(Replay(flights, gate)))
        by_process = days.map(lambda day: (os.getpid(), day))
        shown, story = [], None
        with by_process.execute_and_collect(NAME) as results:
            for pid, day in results:
                shown.append(day)
                if story is None and day.day >= KILL_AFTER:
                    story = _Story(client, say)
                    story.kill(pid)
                    gate.touch()
                elif story is not None:
                    story.go_on()
                flights_stream.show(day)
    if story is None:
        raise NotSurvivedError("the stream ended before a process of it could be killed")
    story.go_on()
    story.end()
    compare(shown, flights)
    say(
        f"{sum(day.flights for day in shown):,} flights in {len(shown):,} airports' days: the same"
        " as without a kill"
    )


class _Story:
    """What the user is told of the kill and of what follows from it."""

    def __init__(self, client: flinkray.ClusterClient, say: Callable[[str], None]) -> None:
        (job,) = (job for job in client.list_jobs() if job.name == NAME)
        self._job = client.job(job.job_id)
        self._say = say
        self._name = ""
        self._killed = 0.0
        self._goes_on = False

    def kill(self, pid: int) -> None:
        """The process whose result was shown last."""
        checkpoints = self._job.details().checkpoints
        if checkpoints is None or checkpoints.latest_completed is None:
            raise NotSurvivedError(f"job {self._job.job_id} has no checkpoint to go on from")
        latest = checkpoints.latest_completed
        self._say(
            f"{checkpoints.completed} checkpoints are complete; number {latest.checkpoint_id} took"
            f" {latest.duration or 0.0:.2f} s"
        )
        self._name = kill_task_process(pid)
        self._killed = time.monotonic()
        self._say(f"half way: kill -9 {pid}, which was {self._name}")

    def go_on(self) -> None:
        """Tell, once, from which checkpoint the job has gone on, if it has."""
        if self._goes_on:
            return
        details = self._job.details()
        if details.checkpoints is None or details.checkpoints.latest_restored is None:
            return
        self._goes_on = True
        for failure in details.exceptions:
            causes = [failure.text, *(other.text for other in failure.concurrent)]
            # a task that misses its neighbour may have told of it first
            told = next((text for text in causes if self._name in text), causes[0])
            self._say(f"the job noticed: {told.partition(': ')[0]}")
        self._say(
            f"{time.monotonic() - self._killed:.1f} s after the kill: the job goes on from"
            f" checkpoint {details.checkpoints.latest_restored}, not from the beginning"
        )

    def end(self) -> None:
        if not self._goes_on:
            raise NotSurvivedError(
                f"job {self._job.job_id} did not go on from a checkpoint after the kill"
            )


def kill_task_process(pid: int) -> str:
    """End one task process of this machine as ``kill -9`` does; its name.

    Its functions have said which process they are in.  Ray, which lists the processes of a cluster
    as actors (``ray list actors`` shows the same), has to know it as a task process.

    Raises:
        NotSurvivedError: it does not, or the process cannot be killed.
    """
    context = ray.get_runtime_context()
    actors = list_actors(
        address=context.gcs_address,
        filters=[
            ("pid", "=", pid),
            ("class_name", "=", "TaskProcess"),
            ("node_id", "=", context.get_node_id()),
            ("state", "=", "ALIVE"),
        ],
        detail=True,
    )
    if len(actors) != 1:
        raise NotSurvivedError(f"process {pid} is no task process of this machine; none was killed")
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        raise NotSurvivedError(f"cannot kill {actors[0].name}, pid {pid}: {error}") from error
    return str(actors[0].name)


def compare(shown: list[Any], flights: pa.Table) -> None:
    """With what the same program computes here, where nothing is killed.

    Raises:
        NotSurvivedError: they differ.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    days = flights_stream.delays_per_airport(env.from_arrow(flights, batch_rows=4096))
    expected = _in_order(list(days.execute_and_collect()))
    found = _in_order(shown)
    if found != expected:
        differences = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
        raise NotSurvivedError(
            f"{len(found)} results after the kill are not the {len(expected)} without one:"
            f" {differences[:1]}"
        )


def _in_order(days: list[Any]) -> list[dict[str, Any]]:
    return sorted((day.as_dict() for day in days), key=lambda day: (day["airport"], day["day"]))
