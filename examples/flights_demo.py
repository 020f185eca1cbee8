"""The flights pipeline on a cluster of its own: ``make demo``.

Starts an embedded cluster, submits the pipeline as a job of one Spark stage, shows what happens
while it runs, prints each carrier's worst route and hour, and writes Parquet and a plot.  Then the
same flights pass as a stream of events through slots of the cluster (``flights_stream.py``), and at
last through Spark and a stream in one job (``flights_alerts.py``).  Both streams lose a process.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import flights_alerts_kill
import flights_kill
import pyarrow.parquet as pq
from flights import package_data, pipeline
from flights_outputs import Files, alerts_output
from flights_progress import Progress
from flights_report import plot, summary, text_table

import flinkray

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
        return run(options.output, options.parallelism, options.postgresql, options.keep_running)
    except KeyboardInterrupt:
        print("\ninterrupted; the cluster is gone")
        return INTERRUPTED
    except (flinkray.FlinkRayError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(output: Path, parallelism: int, postgresql: str | None, keep_running: bool) -> int:
    """The demo; leaves no process behind, however it ends.

    Raises:
        KeyboardInterrupt: Ctrl-C; the job is cancelled and the cluster shut down by then.
        FlinkRayError: the job was refused or failed.
    """
    progress = Progress()
    job = flinkray.spark_job(pipeline, name="flights", parallelism=parallelism, cpu=1, memory="1g")
    for name in ("hours", "alerts"):  # of an earlier demo
        shutil.rmtree(output / name, ignore_errors=True)
    progress.say("starting a cluster on this machine: Ray, Dispatcher, ResourceManager")
    with (
        alerts_output(postgresql, output / "alerts") as alerts,
        flinkray.connect("local") as client,
    ):
        progress.say("the cluster is up")
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
        progress.say("Spark and a stream as one job, which is going to lose a process, too")
        hours = Files(output / "hours")
        flights_alerts_kill.run(client, hours, alerts, progress.of_another_job())
        if keep_running:
            _wait_for_user(client.dashboard_url)
        progress.say("shutting the cluster down")
    return 0


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
        "--postgresql",
        metavar="CONNINFO",
        help="database for the alerts' table, as libpq has it; by default that of a server that is"
        " there as long as the demo, if PostgreSQL is installed",
    )
    parser.add_argument(
        "--keep-running",
        action="store_true",
        help="leave cluster and dashboard up after the job, until Enter or Ctrl-C",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
