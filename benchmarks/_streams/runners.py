"""What runs a program and says how long it took.

A runner for a cluster takes the place of the local one where the programs are to run in slots:
what a runner is given, an environment and a function that builds the program on it, is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

Build = Callable[[StreamExecutionEnvironment], Any]


class Runner(Protocol):
    """See the module."""

    description: str
    cores: int
    """That a program may use, and so may what it is compared with; the time of the clock is taken
    where there are several."""

    def clock(self) -> float:
        """Seconds of what is measured."""

    def environment(self) -> StreamExecutionEnvironment:
        """Where a program begins."""


class LocalRunner:
    """In this process and thread: one core, of which the processor's time is taken, so that
    whatever else the machine does counts less."""

    description = "one process and thread, processor time"
    cores = 1

    def __init__(self, parallelism: int = 1) -> None:
        self._parallelism = parallelism

    def clock(self) -> float:
        return time.process_time()

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        return env.set_parallelism(self._parallelism)


RUNNERS: dict[str, Callable[[], Runner]] = {"local": LocalRunner}


def seconds(
    runner: Runner, build: Build, mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
) -> float:
    """How long the program took; *build* ends it with a sink."""
    env = runner.environment().set_runtime_mode(mode)
    build(env)
    begun = runner.clock()
    env.execute("benchmark")
    return runner.clock() - begun
