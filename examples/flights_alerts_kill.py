"""``flights_alerts.py`` with a kill half way through the year, and what pandas says of its results.

The flights pass at a pace of about two months a second, through a job that takes a checkpoint every
half second.  What the job has learned so far is queried meanwhile, and when it has learned from
half a year, the process that reads the flights is ended with SIGKILL.
``make demo`` runs this, see ``flights_demo.py``.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import flights_alerts
import pyarrow as pa
from flights_alerts_check import check, expected_hours, joined_flights
from flights_kill import NotSurvivedError, kill_task_process
from flights_outputs import Output
from flights_progress import Progress

import flinkray
from flinkray import QueryableStateClient
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.errors import (
    KvStateJobNotFoundError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateLocationError,
)

NAME = "flights with alerts"
CHECKPOINT_INTERVAL = 500
"""Milliseconds."""
FLIGHTS_PER_SECOND = 50_000.0
BEFORE_THE_KILL = 5_000.0
"""Flights per second of the second half of the year, before the kill."""
SECOND_HALF = 1_372_651_200_000
"""The 1st of July, in milliseconds."""
AIRPORT, HOUR_OF_DAY = "JFK", 17
DAYS = 170
"""That the model has learned from when the kill comes."""
POLL = 0.1
"""Seconds."""
CANCEL_PATIENCE = 30.0
"""Seconds for a cancelled job to end."""


class Pace:
    """Lets batches through at a pace; slowly in the second half of the year, before the file
    ``killed`` is in *folder*.  Its process is named by the file ``pid`` there."""

    def __init__(self, folder: Path) -> None:
        self._killed = folder / "killed"
        self._pid = folder / "pid"

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        unfinished = self._pid.with_name("pid.unfinished")
        unfinished.write_text(str(os.getpid()))
        unfinished.replace(self._pid)
        newest = batch["time_hour"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())[-1].as_py()
        is_held = newest >= SECOND_HALF and not self._killed.exists()
        time.sleep(batch.num_rows / (BEFORE_THE_KILL if is_held else FLIGHTS_PER_SECOND))
        return batch


def run(client: flinkray.ClusterClient, hours: Output, alerts: Output, progress: Progress) -> None:
    """Write hours and alerts, with a kill in June, and compare them with what pandas computes.

    Raises:
        NotSurvivedError: nothing could be killed, or the job did not go on from a checkpoint.
        WrongResultsError: the results are not those of pandas.
    """
    # a job that is interrupted may write there while it ends
    with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as folder:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        env.enable_checkpointing(CHECKPOINT_INTERVAL)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(Path(folder) / "checkpoints"))
        flights_alerts.build(env, hours, alerts, Pace(Path(folder)))
        handle = client.job(env.execute_async(NAME).get_job_id())
        story = _Story(client, handle, progress)
        with ExitStack() as unfinished:
            unfinished.callback(_cancel, handle)
            story.follow(Path(folder))
            handle.result()
            unfinished.pop_all()
        story.end()
    found = alerts.rows()
    check(hours.rows(), found, expected_hours(joined_flights()))
    progress.say(
        f"{len(hours.rows()):,} hours in {hours}, {len(found)} alerts in {alerts}: what pandas"
        " computes, in spite of the kill"
    )
    print("\nThe hours that were worst, compared with what was usual:\n")
    for alert in flights_alerts.worst(found, 5):
        print(f"  {flights_alerts.line_of(alert)}")
    print()


def _cancel(handle: flinkray.JobHandle) -> None:
    with suppress(flinkray.FlinkRayError):  # it has ended by itself
        handle.cancel()
        handle.wait(CANCEL_PATIENCE)


class _Story:
    """What the user is told of the job."""

    def __init__(
        self,
        client: flinkray.ClusterClient,
        handle: flinkray.JobHandle,
        progress: Progress,
    ) -> None:
        self._handle = handle
        self._progress = progress
        self._states = QueryableStateClient(client)
        self._has_killed = False
        self._told = 0

    def follow(self, folder: Path) -> None:
        """Until the kill, or the end of the job."""
        while not self._handle.status().is_terminal:
            days = self._show_model()
            details = self._handle.details()
            self._progress.show(details)
            checkpoints = details.checkpoints
            if days >= DAYS and checkpoints is not None and checkpoints.latest_completed:
                self._progress.say(f"{checkpoints.completed} checkpoints are complete")
                pid = int((folder / "pid").read_text())
                name = kill_task_process(pid)
                self._has_killed = True
                self._progress.say(f"half way: kill -9 {pid}, which was {name}")
                (folder / "killed").touch()
                return
            time.sleep(POLL)

    def _show_model(self) -> int:
        """The days that the model has learned from."""
        try:
            models = self._states.get_kv_state(self._handle.job_id, flights_alerts.MODELS, AIRPORT)
        except (UnknownKvStateLocationError, UnknownKeyOrNamespaceError, KvStateJobNotFoundError):
            return 0  # not yet, or not any more: the job's result says why
        days, mean, variance = models.get(HOUR_OF_DAY) or (0, 0.0, 0.0)
        if days >= self._told + 30:
            self._told = days
            self._progress.say(
                f"queried: after {days} days, {AIRPORT} is usually {mean:.0f} ± {variance**0.5:.0f}"
                f" min late at {HOUR_OF_DAY}:00"
            )
        return int(days)

    def end(self) -> None:
        """Raises NotSurvivedError: no kill, or the job did not go on from a checkpoint after it."""
        checkpoints = self._handle.details().checkpoints
        if not self._has_killed:
            raise NotSurvivedError("the stream ended before a process of it could be killed")
        if checkpoints is None or checkpoints.latest_restored is None:
            raise NotSurvivedError(
                f"job {self._handle.job_id} did not go on from a checkpoint after the kill"
            )
        self._progress.say(
            f"the job went on from checkpoint {checkpoints.latest_restored}, and is finished"
        )
