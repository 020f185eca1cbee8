"""How long checkpoints of jobs in two slots of a cluster take, from trigger to completion."""

from __future__ import annotations

from functools import partial
from statistics import median

from _results import Figure, Results

import flinkray

from .one_subtask import FLINK_SECONDS
from .programs import PARALLELISM, Checkpoints, keep, running, slow

BYTES_OF_KEY = 100
_LONGEST = 240.0
"""Seconds that are waited for."""


def measure(keys: int, rounds: int, scale: float, results: Results) -> None:
    with flinkray.connect(ray_options={"num_cpus": PARALLELISM}) as cluster:
        with running(cluster, partial(keep, keys=1000), "200 ms") as job:
            tell("of nearly empty state", job, 5 * rounds, 1, results)
        for mode, settings in {
            "aligned": {},
            "unaligned": {"unaligned.enabled": "true"},
        }.items():
            with running(cluster, slow, "1 s", **settings) as job:
                tell(f"under back-pressure, {mode}", job, rounds, 0, results)
        with running(cluster, partial(keep, keys=keys), "2 s", incremental="false") as job:
            size = keys * BYTES_OF_KEY
            seconds = tell(f"of {size / 1e6:.0f} MB of state, whole", job, rounds, size, results)
        with running(cluster, partial(keep, keys=keys), "2 s") as job:
            changed = f"of {size / 1e6:.0f} MB of state, all of it changed each time"
            tell(changed, job, rounds, size, results)
    theirs = FLINK_SECONDS.get(keys // PARALLELISM)
    if theirs is not None and seconds is not None:
        limit = theirs[0] * scale
        what = (
            f"checkpoint of {size / 1e6:.0f} MB of state, whole, {PARALLELISM} slots: over Flink's"
        )
        peer = f"Flink: {limit:.2f} s, scaled"
        results.add(Figure("whole job", what, seconds / limit, 0.7, "x", peer=peer))


def tell(what: str, job: Checkpoints, number: int, smallest: int, results: Results) -> float | None:
    """The median, if there is one."""
    found = job.durations(number, smallest, _LONGEST)
    if not found:
        print(f"checkpoint {what}: none within {_LONGEST:.0f} s", flush=True)
        return None
    title = f"checkpoint {what}, {PARALLELISM} slots: from trigger to completion"
    shown = f"{{}}, of {len(found)}: {min(found) * 1e3:.0f} to {max(found) * 1e3:.0f}"
    results.add(Figure(what, title, median(found) * 1e3, unit="ms", shown=shown))
    return median(found)
