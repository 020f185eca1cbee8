"""Checkpoints: how long they take, hold up and write, and what they cost a job.

    python benchmarks/checkpoints.py [--only state cost jobs kill] [--keys N ...] [--rounds N]

``state`` is one subtask's state on the heap; ``cost`` what an interval of 1 s costs a keyed program
in this process and in two slots of a cluster; ``jobs`` how long checkpoints take from their trigger
to their completion; ``kill`` when the first record is processed after SIGKILL of a task process.
The last three need Ray, and start a cluster of their own.

Flink's figures were measured on another machine: they are scaled by what pyarrow's group-by takes
here and took there.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _checkpoints import jobs, kill, one_subtask, throughput  # noqa: E402
from _results import Results, parse  # noqa: E402

PYARROW_THERE = 333e6
"""Rows per second of its group-by, where Flink was measured."""


def group_by() -> float:
    """Rows per second of pyarrow's."""
    keys = np.arange(10_000_000) % 1000
    table = pa.table({"key": keys, "value": keys})
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        table.group_by("key").aggregate([("value", "sum")])
        seconds.append(time.perf_counter() - begun)
    return len(keys) / median(seconds)


def state(keys: int, rounds: int, scale: float, results: Results) -> None:
    """Of one subtask."""
    taken = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            taken.append(one_subtask.one_round(keys, Path(folder)))
    one_subtask.tell(keys, taken, scale, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = ("state", "cost", "jobs", "kill")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--keys", type=int, nargs="+", default=[500_000, 2_500_000])
    parser.add_argument("--job-keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parse(parser, "only")
    results = Results(options, "flinkray", "pyarrow", "ray")
    here = group_by()
    scale = PYARROW_THERE / here
    print(f"pyarrow's group-by: {here / 1e6:.0f} M rows/s ({PYARROW_THERE / 1e6:.0f} M there)")
    if "state" in options.only:
        for keys in options.keys:
            state(keys, options.rounds, scale, results)
    if "cost" in options.only:
        throughput.measure(options.rounds, results)
    if "jobs" in options.only:
        jobs.measure(options.job_keys, options.rounds, scale, results)
    if "kill" in options.only:
        kill.measure(options.job_keys, options.rounds, results)
    results.end()


if __name__ == "__main__":
    main()
