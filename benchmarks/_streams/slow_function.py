"""A program whose keyed function is, after a while, many times as slow as its source."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from typing import Any, NamedTuple

from _channels.memory import resident

from flinkray.client import ClusterClient
from flinkray.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.streaming.operators.source import BLOCK_RECORDS

from .runners import task_processes

KEYS = 1000
PAYLOAD = 1000
WARM_UP, FAST = 100_000, 300_000
"""Records before the pace is measured, and while it is."""
LOOK_EVERY = 0.02
"""Seconds."""


def record(number: int) -> tuple[int, int, bytes]:
    """One of its own each time, with the process that made it."""
    return number % KEYS, os.getpid(), random.randbytes(PAYLOAD)


RECORD_BYTES = getsizeof(record(0)) + sum(map(getsizeof, record(2**20)))
"""As Python objects."""
BATCH_BYTES = BLOCK_RECORDS * RECORD_BYTES
"""What a source puts out at once."""


class Slow(KeyedProcessFunction[Any, Any, Any]):
    """Counts by key; behind the first records it pauses at each, and at its end it tells in a file
    what it saw."""

    def __init__(self, pause: float, path: str) -> None:
        self.pause = pause
        self.path = path

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.seen = self.producer = 0
        self.times: dict[int, float] = {}

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.seen += 1
        if self.seen > WARM_UP + FAST:
            time.sleep(self.pause)
        elif self.seen in (WARM_UP, WARM_UP + FAST):
            self.times[self.seen] = time.monotonic()
            self.producer = value[1]

    def close(self) -> None:
        told = {
            "producer": self.producer,
            "consumer": os.getpid(),
            "begun": self.times[WARM_UP],
            "slow since": self.times[WARM_UP + FAST],
            "ended": time.monotonic(),
        }
        Path(self.path).write_text(json.dumps(told))


class Seen(NamedTuple):
    """Of one run of the program, in seconds and bytes."""

    fast: float
    slow: float
    producer_growth: int
    """The most above what the process held after the warm-up: a source that is not held back may be
    ahead by all its records before the function becomes slow."""
    consumer_growth: int


def run(client: ClusterClient, slow_records: int, pause: float) -> Seen:
    """The program with so many records at which its function pauses, that many seconds at each.

    Raises:
        RuntimeError: the tasks were not in two processes.
    """
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client).set_parallelism(1)
    source = DataGeneratorSource(record, WARM_UP + FAST + slow_records)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "told")
        made = env.from_source(source, None, "fast").slot_sharing_group("source")
        slow = made.key_by(lambda v: v[0]).process(Slow(pause, str(path)))
        slow.slot_sharing_group("slow").sink_to(DiscardingSink())
        result = env.execute_async("slow consumer").get_job_execution_result()
        held: dict[int, list[tuple[float, int]]] = {}
        while not result.done():
            for process in task_processes():
                with suppress(FileNotFoundError, ProcessLookupError):
                    size = resident(process.pid)
                    held.setdefault(process.pid, []).append((time.monotonic(), size))
            time.sleep(LOOK_EVERY)
        result.result()
        told = json.loads(path.read_text())
    if told["producer"] == told["consumer"]:
        raise RuntimeError("source and function ran in one process: each needs a slot of its own")
    since = told["slow since"]
    return Seen(
        since - told["begun"],
        told["ended"] - since,
        *(_growth(held[told[side]], told["begun"]) for side in ("producer", "consumer")),
    )


def _growth(held: list[tuple[float, int]], since: float) -> int:
    """The most from *since* on, above the last before it."""
    before = max(sample for sample in held if sample[0] <= since)[1]
    return max((size for at, size in held if at > since), default=before) - before
