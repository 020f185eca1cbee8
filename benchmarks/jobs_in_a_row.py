"""Jobs one right after the other, on real Ray: how long until each one's first task runs, and how
much processor time a job costs.

    python benchmarks/jobs_in_a_row.py [--jobs N]

The cluster has just been started, and nobody waits for prestarted processes.  Each job has one
task, which ends at once; the next job is submitted when its result is there.  Times are from before
``client.submit``, by the clock of this one machine.

The processor time is that of all processes of the cluster and of Ray, without this one, from the
submission of the second job until the processes that replace those of the last one are ready.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from statistics import median

import psutil
from _results import Figure, Results, parse

import flinkray
from flinkray.client import ClusterClient
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.task_jobs import ends, task_job

GOAL = 3.0
"""The slowest of the third and later ones, beside the second: that one found all that it needed
ready."""
GOAL_OF_PROCESSOR = 1.5
"""Seconds of processor time of a job."""
_LOOK = 0.05
"""Seconds between two looks at the processor time of the processes: so much of the time of a
process that ends can be missing."""
_QUIET = 0.1
"""Processor seconds of a second in which no process is being started."""
_PATIENCE = 30.0
"""Seconds to wait for that."""


class ProcessorMeter:
    """Adds up the processor time of all descendants of this process, the dead ones included.

    Ray's raylet takes no note of its children's time, so a thread looks at them again and again.
    """

    def __init__(self) -> None:
        self._seen: dict[psutil.Process, float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)
        self._thread.start()

    def _keep_looking(self) -> None:
        while not self._ends.wait(_LOOK):
            self._look()

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process] = times.user + times.system

    def total(self) -> float:
        return sum(list(self._seen.values()))

    def until_quiet(self) -> float:
        """Wait until no process is being started any more. Returns the total."""
        give_up = time.monotonic() + _PATIENCE
        before = self.total()
        while time.monotonic() < give_up:
            time.sleep(1)
            now = self.total()
            if now - before < _QUIET:
                break
            before = now
        return self.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10)
    arguments = parse(parser)
    if arguments.jobs < 3:
        parser.error("the third is compared with the second")
    results = Results(arguments, "ray")
    meter = ProcessorMeter()
    with flinkray.connect() as client:
        times = [_run(client, 0)]
        before = meter.total()
        times += [_run(client, number) for number in range(1, arguments.jobs)]
        cost = (meter.until_quiet() - before) / (len(times) - 1)
    _, second, *later = times
    what = f"{len(times)} jobs one right after the other: the slowest start over the second one"
    shown = f"second {second:.2f} s, median of the others {median(later):.2f} s, slowest {{}}"
    results.add(Figure("slowest", what, max(later) / second, GOAL, "x", shown=shown))
    what = "processor time of a job of one task, replacements of its processes included"
    results.add(Figure("processor", what, cost, GOAL_OF_PROCESSOR, "s"))
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
