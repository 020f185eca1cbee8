"""How long a record takes from source to sink, over an exchange by key, at a steady rate."""

from __future__ import annotations

import time
from statistics import quantiles
from typing import Any

from flinkray.datastream.connectors import CallbackSink, DataGeneratorSource

from .runners import Runner

RATE = 10_000
BUFFER_TIMEOUT = 1
"""Milliseconds."""


def percentiles(runner: Runner, duration: float) -> tuple[float, float]:
    """p50 and p99 in seconds; the first half second warms up.

    Records carry the time at which they were due, by the earliest that any of them came: so what a
    late source adds is counted.
    """
    env = runner.environment().set_buffer_timeout(BUFFER_TIMEOUT)
    count = int(RATE * duration)
    begun = [float("inf")]
    taken: list[float] = []

    def due(number: int) -> float:
        begun[0] = min(begun[0], time.perf_counter() - number / RATE)
        return begun[0] + number / RATE

    def arrived(value: float) -> None:
        taken.append(time.perf_counter() - value)

    source = DataGeneratorSource(due, count, RATE)
    stream: Any = env.from_source(source).disable_chaining()
    stream.key_by(lambda value: int(value * RATE) % 100).map(lambda value: value).sink_to(
        CallbackSink(arrived)
    )
    env.execute("latency")
    steady = taken[RATE // 2 :]
    cuts = quantiles(steady, n=100)
    return cuts[49], cuts[98]
