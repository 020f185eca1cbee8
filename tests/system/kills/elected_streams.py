"""Streams of clusters whose masters are elected on ZooKeeper, and what is seen of their tasks."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flinkray.client import ClusterClient, JobHandle
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.scheduler.shared.states import ExecutionState
from tests.datastream.numbers import SourceOfNumbers
from tests.datastream.tallies import Tally, by_key, settings
from tests.system.kills.gaps import Gaps

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "300m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "jobmaster.max-failovers": "100000",
    "heartbeat.interval": "2 s",
    "heartbeat.timeout": "20 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
    "high-availability.type": "zookeeper",
    "cluster.standby-masters": "1",
}
"""The quorum and the session time-out are to be added."""
END = 300.0
"""Seconds within which a job ends that nothing happens to any more, also on a busy machine."""


def started(
    streams: ClusterClient,
    source: SourceOfNumbers,
    count: int,
    per_second: float,
    folder: Path,
    threads: ThreadPoolExecutor,
    **options: str,
) -> Future[list[Any]]:
    """A job that is on its way, and its results to come."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    checkpoints = settings(folder / "checkpoints", "300 ms")
    env.configure(Configuration.from_dict({**checkpoints, **options}))
    env.set_parallelism(2).set_buffer_timeout(10)
    numbers, of_part = source(env, count, per_second, folder)
    results = by_key(numbers, Tally(of_part, echoes=True)).map(Gaps(folder)).uid("gaps")
    return threads.submit(lambda: list(results.execute_and_collect()))


def all_run(job: JobHandle) -> bool:
    found = [e.state for v in job.details().vertices for e in v.executions]
    return bool(found) and all(state is ExecutionState.RUNNING for state in found)


def attempts(job: JobHandle) -> set[int]:
    """The numbers of the last attempts of all tasks."""
    return {e.attempt_number for v in job.details().vertices for e in v.executions}
