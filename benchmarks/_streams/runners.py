"""What runs a program, and takes the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil

import flinkray
from flinkray.core.options import PRESTARTED_PROCESSES, PRESTARTED_TASK_PROCESSES
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.scheduler.shared.states import ExecutionState

_LOOK_EVERY = 0.02
"""Seconds between two looks at the processes of tasks."""
_IDLE_FOR = 0.7
"""Seconds for which one has not used the processor if it waits: some begin to import things half a
second after their start."""

Build = Callable[[StreamExecutionEnvironment], Any]


class Taken(NamedTuple):
    """What a program took, in seconds."""

    processor: float
    """Of all cores together."""
    clock: float


class Runner(Protocol):
    """See the module."""

    description: str
    cores: int
    """That a program may use."""

    def environment(self) -> StreamExecutionEnvironment:
        """Where a program begins."""

    def come_to_rest(self) -> None:
        """Wait until nothing of what was started has anything to do."""

    def execute(self, env: StreamExecutionEnvironment) -> Taken:
        """Run the program to its end."""

    def notes(self) -> list[str]:
        """What else there is to say of what was executed."""

    def close(self) -> None:
        """End what was started."""


class LocalRunner:
    """In this process and thread."""

    description = "one process and thread"
    cores = 1

    def __init__(self, parallelism: int = 1) -> None:
        self._parallelism = parallelism

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        return env.set_parallelism(self._parallelism)

    def come_to_rest(self) -> None:
        return None

    def execute(self, env: StreamExecutionEnvironment) -> Taken:
        return time_of(lambda: env.execute("benchmark"))

    def notes(self) -> list[str]:
        return []

    def close(self) -> None:
        return None


class ClusterRunner:
    """In slots of a cluster on this machine, which is started for it: two, or as many as *slots*.

    The processor's time is that of the processes that run the tasks, less that of a program without
    records; the time of the clock goes from when all tasks ran (in batch mode, those of the first
    vertex) to when all had finished, as their JobMaster saw it.  So neither counts the start of a
    job, which takes as long however many records there are; :meth:`notes` says how long.

    While a program runs, other processes start in place of those that its job has taken: for some
    ten seconds they want as much of two cores as the program.  In a cluster that *replaces none*
    they start when it has ended.
    """

    description = "two slots of a cluster"
    cores = 2

    def __init__(self, slots: int = cores, *, replaces_none: bool = False) -> None:
        # its processes stay while a program runs beside the cluster
        configuration = {"resourcemanager.taskmanager-timeout": "1 h"}
        if replaces_none:
            configuration |= {PRESTARTED_PROCESSES.key: "0", PRESTARTED_TASK_PROCESSES.key: "0"}
        self._replaces_none = replaces_none
        self._cluster = flinkray.connect(
            configuration=configuration, ray_options={"num_cpus": slots}
        )
        self._slots = slots
        self._has_run = False
        self._waiting: list[psutil.Process] = []
        self._overhead = 0.0
        self._besides: list[float] = []
        """Seconds that each program took besides, from submission to its end."""
        empty = [self._run_nearly_empty().processor for _ in range(4)]
        self._overhead = median(empty[1:])  # the first one starts processes
        self._besides.clear()

    def _run_nearly_empty(self) -> Taken:
        env = self.environment()
        env.from_sequence(1, 10).key_by(lambda n: n).map(lambda n: n).sink_to(DiscardingSink())
        return self.execute(env)

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=self._cluster)
        return env.set_parallelism(self._slots)

    def come_to_rest(self) -> None:
        if not self._replaces_none:
            wait_for_prestarted(self._cluster.cluster_id)
        # before the first job there are none: its processes are those that it starts
        self._waiting = waiting_task_processes(self._slots) if self._has_run else []

    def execute(self, env: StreamExecutionEnvironment) -> Taken:
        self.come_to_rest()
        self._has_run = True
        with ProcessorTime(self._waiting) as spent:
            begun = time.perf_counter()
            result = env.execute("benchmark")
            whole = time.perf_counter() - begun
        processor = spent.seconds() - self._overhead
        vertices = self._cluster.job(result.get_job_id()).details().vertices
        running, finished = (
            [max(e.state_timestamps[state.name] for e in v.executions) for v in vertices]
            for state in (ExecutionState.RUNNING, ExecutionState.FINISHED)
        )
        first, last = min(running), max(finished)  # in batch mode one vertex runs after the other
        self._besides.append(whole - (last - first))
        return Taken(max(processor, 1e-6), max(last - first, 1e-6))

    def notes(self) -> list[str]:
        return [f"start and end of a job besides: {median(self._besides):.2f} s (median)"]

    def close(self) -> None:
        self._cluster.close()


class ProcessorTime:
    """Of the processes of tasks that a job takes, while it is entered.

    They end with their job, so that they are looked at again and again; what one spends after the
    last look is not counted.  Nor are processes that start meanwhile, since they wait for the jobs
    that follow.
    """

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._before = {process: processor_seconds(process) for process in processes}
        self._last = dict(self._before)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processor time")

    def __enter__(self) -> ProcessorTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Of all of them together."""
        return sum(self._last.values()) - sum(self._before.values())

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY):
            for process in self._before:
                with suppress(psutil.NoSuchProcess):
                    self._last[process] = processor_seconds(process)


def processor_seconds(process: psutil.Process) -> float:
    """Those of all its threads until now.  Raises psutil.NoSuchProcess."""
    times = process.cpu_times()
    return times.user + times.system


def waiting_task_processes(number: int) -> list[psutil.Process]:
    """So many of them, as soon as there are no others and they have nothing to do.

    Raises:
        TimeoutError: that was not so within five minutes.
    """
    deadline = time.monotonic() + 300
    spent: dict[psutil.Process, float] = {}
    since = time.monotonic()
    while time.monotonic() < deadline:
        now = {}
        for process in task_processes():
            with suppress(psutil.NoSuchProcess):
                now[process] = processor_seconds(process)
        if now != spent:
            spent, since = now, time.monotonic()
        elif len(spent) == number and time.monotonic() - since > _IDLE_FOR:
            return list(spent)
        time.sleep(_LOOK_EVERY)
    raise TimeoutError(f"{len(spent)} task processes wait for a job instead of {number}")


def task_processes() -> list[psutil.Process]:
    """Of clusters that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith("ray::TaskProcess"):
                found.append(process)
    return found


def wait_for_prestarted(cluster_id: str) -> None:
    """Those that a job takes are replaced within seconds, so many as there are by default."""
    directory = RayDirectory(f"flinkray-{cluster_id}")
    deadline = time.monotonic() + 60
    while (
        len(directory.ready_prestarted()) < PRESTARTED_PROCESSES.default
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)


RUNNERS: dict[str, Callable[[], Runner]] = {"local": LocalRunner, "cluster": ClusterRunner}


def time_of(work: Callable[[], object]) -> Taken:
    """What it takes this process."""
    processor, begun = time.process_time(), time.perf_counter()
    work()
    return Taken(time.process_time() - processor, time.perf_counter() - begun)


def run(
    runner: Runner, build: Build, mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
) -> Taken:
    """What the program took; *build* ends it with a sink."""
    env = runner.environment().set_runtime_mode(mode)
    build(env)
    return runner.execute(env)


def medians(taken: Sequence[Taken]) -> Taken:
    """Of each."""
    processor, clock = zip(*taken, strict=True)
    return Taken(median(processor), median(clock))
