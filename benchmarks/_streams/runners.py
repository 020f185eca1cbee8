"""What runs a program, and takes the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

import flinkray
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink

Build = Callable[[StreamExecutionEnvironment], Any]


class Runner(Protocol):
    """See the module."""

    description: str
    cores: int
    """That a program may use, and so may what it is compared with; the time of the clock is taken
    where there are several."""
    overhead: float
    """Seconds that a program without records takes, which are subtracted."""

    def clock(self) -> float:
        """Seconds of what is measured."""

    def environment(self) -> StreamExecutionEnvironment:
        """Where a program begins."""

    def close(self) -> None:
        """End what was started."""


class LocalRunner:
    """In this process and thread: one core, of which the processor's time is taken, so that
    whatever else the machine does counts less."""

    description = "one process and thread, processor time"
    cores = 1
    overhead = 0.0

    def __init__(self, parallelism: int = 1) -> None:
        self._parallelism = parallelism

    def clock(self) -> float:
        return time.process_time()

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        return env.set_parallelism(self._parallelism)

    def close(self) -> None:
        return None


class ClusterRunner:
    """In two slots of a cluster on this machine, which is started for it."""

    description = "two slots of a cluster, time of the clock without that of an empty program"
    cores = 2

    def __init__(self) -> None:
        self._cluster = flinkray.connect(ray_options={"num_cpus": self.cores})
        self.overhead = 0.0
        empty = [seconds(self, _nearly_empty) for _ in range(4)]
        self.overhead = median(empty[1:])  # the first one starts processes

    def clock(self) -> float:
        return time.perf_counter()

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=self._cluster)
        return env.set_parallelism(self.cores)

    def close(self) -> None:
        self._cluster.close()


def _nearly_empty(env: StreamExecutionEnvironment) -> None:
    env.from_sequence(1, 10).key_by(lambda n: n).map(lambda n: n).sink_to(DiscardingSink())


RUNNERS: dict[str, Callable[[], Runner]] = {"local": LocalRunner, "cluster": ClusterRunner}


def seconds(
    runner: Runner, build: Build, mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
) -> float:
    """How long the program took; *build* ends it with a sink."""
    env = runner.environment().set_runtime_mode(mode)
    build(env)
    begun = runner.clock()
    env.execute("benchmark")
    return max(runner.clock() - begun - runner.overhead, 1e-6)
