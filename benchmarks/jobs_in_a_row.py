"""Jobs one right after the other, on real Ray: how long until each one's first task runs.

    python benchmarks/jobs_in_a_row.py [--jobs N]

The cluster has just been started, and nobody waits for prestarted processes.  Each job has one
task, which ends at once; the next job is submitted when its result is there.  Times are from before
``client.submit``, by the clock of this one machine.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from _results import Figure, Results, parse

import flinkray
from flinkray.client import ClusterClient
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.task_jobs import ends, task_job

GOAL = 3.0
"""The slowest of the third and later ones, beside the second: that one found all that it needed
ready."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    arguments = parse(parser)
    if arguments.jobs < 3:
        parser.error("the third is compared with the second")
    results = Results(arguments, "ray")
    with flinkray.connect() as client:
        times = [_run(client, number) for number in range(arguments.jobs)]
    _, second, *later = times
    what = f"{len(times)} jobs one right after the other: the slowest start over the second one"
    shown = f"second {second:.2f} s, median of the others {median(later):.2f} s, slowest {{}}"
    results.add(Figure("slowest", what, max(later) / second, GOAL, "x", shown=shown))
    results.raw["seconds"] = times
    results.end()


def _run(client: ClusterClient, number: int) -> float:
    """Seconds from submission until the task runs; its result is there on return."""
    job = task_job(ends, name=f"job {number}")
    submitted = time.time()
    handle = client.submit(job)
    handle.result(timeout=120)
    (vertex,) = handle.details().vertices
    (execution,) = vertex.executions
    running = execution.state_timestamps[ExecutionState.RUNNING.name]
    print(f"job {number + 1}: runs after {running - submitted:.2f} s", flush=True)
    return running - submitted


if __name__ == "__main__":
    main()
