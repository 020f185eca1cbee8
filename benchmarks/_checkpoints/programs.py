"""Programs that run until they are cancelled, and what they write down."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _streams.sources import Batches

from flinkray.checkpoint.layout import find_checkpoints
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.client import ClusterClient
from flinkray.client.job_handle import JobHandle
from flinkray.datastream import (
    Configuration,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DiscardingSink
from flinkray.datastream.functions import MapFunction
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.streaming.records.elements import Block

PARALLELISM = 2
ENDLESS = 1 << 40
VALUE = "x" * 88


class Numbers(Batches):
    """Those below *keys*, again and again."""

    def __init__(self, keys: int, length: int = 4000) -> None:
        super().__init__(ENDLESS)
        self._keys = keys
        self._length = length

    def batch(self, number: int) -> Block:
        begin, keys = number * self._length, self._keys
        return Block([(begin + n) % keys for n in range(self._length)])


class Keep(KeyedProcessFunction[int, int, int]):
    """Has about 100 bytes of text for each key.  Each attempt of a subtask writes down when it
    was opened, and when it had processed its first record."""

    def __init__(self, witness: Path | None = None) -> None:
        self._witness = witness

    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.STRING()))
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._opened = time.time()

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        self._kept.update(f"{VALUE}{value % 1000:03d}")
        if self._witness is not None:
            path = self._witness / f"{self._subtask}-{os.getpid()}-{self._opened}"
            self._witness = None
            path.write_text(str(time.time()))


class Slow(MapFunction[int, int]):
    """Takes at least a tenth of a millisecond for each record."""

    def map(self, value: int) -> int:
        time.sleep(0.0001)
        return value


def numbers_of(env: StreamExecutionEnvironment, source: Numbers) -> Any:
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).uid(
        "numbers"
    )


def keep(env: StreamExecutionEnvironment, keys: int, witness: Path | None = None) -> None:
    """Text keys, each with about 100 bytes."""
    by_key = numbers_of(env, Numbers(keys)).key_by(lambda n: f"key-{n:08d}", Types.STRING())
    by_key.process(Keep(witness)).uid("keep").sink_to(DiscardingSink())


def slow(env: StreamExecutionEnvironment) -> None:
    """A task that does not keep up, behind an exchange."""
    by_key = numbers_of(env, Numbers(1000, 100)).key_by(lambda n: n)
    by_key.map(Slow()).uid("slow").sink_to(DiscardingSink())


class Checkpoints:
    """Of one job, in a directory of their own."""

    def __init__(self, directory: Path, handle: JobHandle) -> None:
        self.handle = handle
        self._directory = str(directory)

    def durations(self, number: int, smallest: int, seconds: float) -> list[float]:
        """From the trigger to when the metadata was complete, of the next so many complete
        checkpoints with at least *smallest* bytes; fewer where that takes more than *seconds*."""
        deadline = time.monotonic() + seconds
        known = set(find_checkpoints(self._directory))
        found: list[float] = []
        while len(found) < number and time.monotonic() < deadline:
            time.sleep(0.1)
            if self.handle.status().is_globally_terminal:
                raise RuntimeError(f"the job has ended: {self.handle.exceptions()}")
            for path in find_checkpoints(self._directory):
                if path not in known:
                    known.add(path)
                    if size_of(path) >= smallest:
                        found.append(duration_of(path))
        return found[:number]


def size_of(path: str) -> int:
    """Bytes of all state that the checkpoint refers to."""
    operators = read_metadata(path).operators
    states = [subtask.state for operator in operators for subtask in operator.subtasks]
    return sum(location.size for state in states for location in state.locations())


def duration_of(path: str) -> float:
    return os.stat(path).st_mtime - read_metadata(path).timestamp / 1000


@contextmanager
def running(
    cluster: ClusterClient, build: Any, interval: str, **settings: Any
) -> Iterator[Checkpoints]:
    """The job, until it is left."""
    with tempfile.TemporaryDirectory() as folder:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.configure(
            Configuration.from_dict(
                {
                    "execution.checkpointing.interval": interval,
                    "execution.checkpointing.dir": folder,
                    "execution.checkpointing.num-retained": "1000",
                    "restart-strategy.type": "fixed-delay",
                    "restart-strategy.fixed-delay.attempts": "100",
                    "restart-strategy.fixed-delay.delay": "0 ms",
                    **{f"execution.checkpointing.{k}": str(v) for k, v in settings.items()},
                }
            )
        )
        env.set_parallelism(PARALLELISM)
        build(env)
        handle = cluster.job(env.execute_async("checkpoints").get_job_id())
        try:
            yield Checkpoints(Path(folder), handle)
        finally:
            handle.cancel()
            handle.wait(timeout=60)
