"""The flights pipeline on a cluster of its own: ``make demo``.

Starts an embedded cluster, submits the pipeline as a job of one Spark stage, shows what happens
while it runs, prints each carrier's worst route and hour, and writes Parquet and a plot.  Then the
same flights pass as a stream of events through slots of the cluster (``flights_stream.py``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import flights_kill
import pyarrow.parquet as pq
from flights import package_data, pipeline
from flights_report import plot, summary, text_table

import flinkray
from flinkray.scheduler.reports.job_info import JobDetails, StageProgressInfo, VertexInfo

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

ACTORS = "its JobMaster, SlotPool, TaskExecutors, SparkDriver and raydp-executors"

POLL = 0.25
"""Seconds between two questions after the job's progress."""

CANCEL_PATIENCE = 30.0
"""Seconds for a cancelled job to end before the cluster is shut down over it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 after an error, `INTERRUPTED`."""
    options = _parser().parse_args(arguments)
    try:
        package_data()
        return run(options.output, options.parallelism, options.keep_running)
    except KeyboardInterrupt:
        print("\ninterrupted; the cluster is gone")
        return INTERRUPTED
    except (flinkray.FlinkRayError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(output: Path, parallelism: int, keep_running: bool) -> int:
    """The demo; leaves no process behind, however it ends.

    Raises:
        KeyboardInterrupt: Ctrl-C; the job is cancelled and the cluster shut down by then.
        FlinkRayError: the job was refused or failed.
    """
    progress = Progress()
    progress.say("starting a cluster on this machine: Ray, Dispatcher, ResourceManager")
    with flinkray.connect("local") as client:
        progress.say("the cluster is up")
        job = flinkray.spark_job(
            pipeline, name="flights", parallelism=parallelism, cpu=1, memory="1g"
        )
        handle = client.submit(job)
        progress.say(f"job {handle.job_id} is submitted")
        if client.dashboard_url:
            progress.say(f"watch it at {client.dashboard_url}/#/actors: {ACTORS}")
        try:
            while not progress.show(handle.details()):
                time.sleep(POLL)
            result = handle.result()
        except KeyboardInterrupt:
            _cancel(handle, progress)
            raise

        table = result.to_arrow()
        statistics = table.to_pandas()
        output.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, output / "flights.parquet")
        plot(statistics, output / "flights.png")

        print(f"\n{summary(statistics)}.\nThe worst route and hour of each carrier in 2013:\n")
        print(text_table(statistics))
        print(
            f"\n{table.num_rows:,} rows, one per carrier, route and hour, in"
            f" {output / 'flights.parquet'}; plot in {output / 'flights.png'}"
        )
        progress.say(
            "the same flights as events, by a stream program that is going to lose a process"
        )
        flights_kill.run(client, parallelism, progress.say)
        if keep_running:
            _wait_for_user(client.dashboard_url)
        progress.say("shutting the cluster down")
    return 0


class Progress:
    """Prints a line for whatever changed since the job was looked at last."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._said: dict[str, str] = {}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s  {text}", flush=True)

    def show(self, job: JobDetails) -> bool:
        """Returns whether the job has ended."""
        self._say_once("status", f"job {job.status.name}")
        if job.pending_reason:
            self._say_once("pending", f"waiting for slots: {job.pending_reason}")
        for vertex in job.vertices:
            for execution in vertex.executions:
                place = f" in {execution.location}" if execution.location else ""
                pid = f", executor pid {execution.executor_pid}" if execution.executor_pid else ""
                self._say_once(
                    f"slot {execution.subtask_index}",
                    f"slot {execution.subtask_index}: {execution.state.name}{place}{pid}",
                )
            self._say_once("spark", _spark_progress(vertex))
        for exception in job.exceptions:
            self._say_once(f"exception {exception.timestamp}", f"failure: {exception.text}")
        return job.status.is_terminal

    def _say_once(self, subject: str, text: str) -> None:
        if text and self._said.get(subject) != text:
            self._said[subject] = text
            self.say(text)


def _spark_progress(vertex: VertexInfo) -> str:
    if not (vertex.active_stages or vertex.completed_stages):
        return ""
    running = "".join(
        f"; stage {_stage(stage)}: {stage.completed_tasks} of {stage.num_tasks} tasks"
        for stage in vertex.active_stages
    )
    return f"Spark: stages done {vertex.completed_stages}, tasks {vertex.completed_tasks}{running}"


def _stage(stage: StageProgressInfo) -> str:
    """Its number, and the call of the program that caused it, if it was one: Spark has
    ``parquet at <place>``, and names such as ``$anonfun$…`` for what it does on its own."""
    call = stage.name.partition(" at ")[0]
    return str(stage.stage_id) if "$" in call else f"{stage.stage_id} ({call})"


def _cancel(handle: flinkray.JobHandle, progress: Progress) -> None:
    progress.say("interrupted: cancelling the job")
    try:
        handle.cancel()
        handle.wait(CANCEL_PATIENCE)
    except flinkray.FlinkRayError as error:
        # It has ended meanwhile, or hangs; shutting the cluster down ends it in any case.
        progress.say(str(error))


def _wait_for_user(dashboard_url: str | None) -> None:
    where = f" Look at {dashboard_url} (Actors, Jobs)." if dashboard_url else ""
    print(f"\nThe cluster stays up.{where} Enter or Ctrl-C ends it.", flush=True)
    try:
        sys.stdin.readline()
    except KeyboardInterrupt:
        print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flights_demo",
        description="Delays of the flights that left New York in 2013, by PySpark in slots.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder for Parquet and plot"
    )
    parser.add_argument("--parallelism", type=int, default=2, help="slots, one executor in each")
    parser.add_argument(
        "--keep-running",
        action="store_true",
        help="leave cluster and dashboard up after the job, until Enter or Ctrl-C",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
