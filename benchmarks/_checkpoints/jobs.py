"""How long checkpoints of jobs in two slots of a cluster take, from trigger to completion."""

from __future__ import annotations

from functools import partial
from statistics import median

import flinkray

from .goals import Goals
from .one_subtask import FLINK_SECONDS
from .programs import PARALLELISM, Checkpoints, keep, running, slow

BYTES_OF_KEY = 100
_LONGEST = 240.0
"""Seconds that are waited for."""


def measure(keys: int, rounds: int, scale: float, goals: Goals) -> None:
    with flinkray.connect(ray_options={"num_cpus": PARALLELISM}) as cluster:
        with running(cluster, partial(keep, keys=1000), "200 ms") as job:
            tell("of nearly empty state", job, 5 * rounds, 1)
        for mode, settings in {
            "aligned": {},
            "unaligned": {"unaligned.enabled": "true"},
        }.items():
            with running(cluster, slow, "1 s", **settings) as job:
                tell(f"under back-pressure, {mode}", job, rounds, 0)
        with running(cluster, partial(keep, keys=keys), "2 s", incremental="false") as job:
            size = keys * BYTES_OF_KEY
            seconds = tell(f"of {size / 1e6:.0f} MB of state, whole", job, rounds, size)
        with running(cluster, partial(keep, keys=keys), "2 s") as job:
            tell("the same, all of it changed each time", job, rounds, size)
    theirs = FLINK_SECONDS.get(keys // PARALLELISM)
    if theirs is not None and seconds is not None:
        limit = theirs[0] * scale
        text = f"whole at most 0.7 x Flink's {limit:.2f} s (is {seconds / limit:.2f} x)"
        goals.check(text, seconds <= 0.7 * limit)


def tell(what: str, job: Checkpoints, number: int, smallest: int) -> float | None:
    """The median, if there is one."""
    found = job.durations(number, smallest, _LONGEST)
    if not found:
        print(f"checkpoint {what}: none within {_LONGEST:.0f} s", flush=True)
        return None
    print(
        f"checkpoint {what}: {median(found) * 1e3:.0f} ms (of {len(found)}: "
        f"{min(found) * 1e3:.0f} to {max(found) * 1e3:.0f})",
        flush=True,
    )
    return median(found)
