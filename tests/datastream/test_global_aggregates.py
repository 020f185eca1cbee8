"""Global aggregates through the API: in one process, and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    AggregateFunction,
    Configuration,
    DataStream,
    GlobalAggregateManager,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.graph.job_graph import SPARK, Invokable
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import MASTERS_MAY_DIE, RESTARTS
from tests.datastream.test_cluster_takeover import kill_job_master

CONFIGURATION = MASTERS_MAY_DIE


def on(cluster: ThreadedCluster, **options: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(options))
    return env.set_parallelism(1)


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Adding(MapFunction[int, Any]):
    """Returns the results of the aggregates of these names after a value was added to each."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.total = Total()

    def open(self, runtime_context: RuntimeContext) -> None:
        self.aggregates: GlobalAggregateManager = runtime_context.get_global_aggregate_manager()
        self.attempt = runtime_context.get_attempt_number()

    def add(self, name: str, value: int) -> int:
        return self.aggregates.update_global_aggregate(name, value, self.total)

    def map(self, value: int) -> Any:
        return tuple(self.add(name, value) for name in self.names)


Environments = dict[str, Callable[[ThreadedCluster], StreamExecutionEnvironment]]
ENVIRONMENTS: Environments = {
    "in one process": lambda _: StreamExecutionEnvironment(),
    "on a cluster": on,
}


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_global_aggregate_update_returns_the_result_so_far_of_its_own_name_only(
    where: str, own_cluster: ThreadedCluster
) -> None:
    """JM-16."""
    env = ENVIRONMENTS[where](own_cluster).set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4]).map(Adding("a"))
    assert list(numbers.execute_and_collect()) == [(1,), (3,), (6,), (10,)]
    both = env.from_collection([1, 2]).map(Adding("a", "b"))
    assert list(both.execute_and_collect()) == [(1, 1), (3, 3)], "another job has its own"


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_all_subtasks_and_operators_of_a_job_share_a_global_aggregate(
    where: str, own_cluster: ThreadedCluster
) -> None:
    """JM-16."""
    env = ENVIRONMENTS[where](own_cluster).set_parallelism(2)
    ones = env.from_sequence(1, 20).map(lambda _: 1)
    first, second = (ones.rebalance().map(Adding("all")) for _ in range(2))
    results = first.union(second).execute_and_collect()
    assert sorted(results) == [(n,) for n in range(1, 41)]


def test_global_aggregates_keep_values_when_tasks_restart_and_job_masters_die(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """JM-16."""
    added, go = str(tmp_path / "added"), str(tmp_path / "go")

    class FailingOnce(Adding):
        def map(self, value: int) -> Any:
            before = self.add("a", value)
            if self.attempt == 0:
                raise ValueError("once more")
            Path(added).touch()
            wait_until(Path(go).exists, 300, "the death of the JobMaster")
            return before, self.add("a", value)

    numbers = on(own_cluster, **RESTARTS).from_collection([1]).map(FailingOnce())
    results = numbers.execute_and_collect()
    job = own_cluster.client.job(own_cluster.client.list_jobs()[0].job_id)
    wait_until(Path(added).exists, 150, "the second attempt to add its value")
    kill_job_master(own_cluster, job)
    Path(go).touch()
    assert list(results) == [(2, 3)]


def test_task_that_waits_for_a_global_aggregate_update_can_be_cancelled(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The cancellation ends the wait, although the function does not return."""
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")

    class Endless(Total):
        def add(self, value: int, accumulator: int) -> int:
            Path(begun).touch()
            wait_until(Path(go).exists, 300, "the end of the test")
            return value

    class Waiting(Adding):
        def map(self, value: int) -> Any:
            return self.aggregates.update_global_aggregate("a", value, Endless())

    env = on(own_cluster)
    env.from_collection([1]).map(Waiting()).sink_to(DiscardingSink())
    job = own_cluster.client.job(env.execute_async("waits").get_job_id())
    wait_until(Path(begun).exists, 150, "the function to run")
    job.cancel()
    assert job.wait(timeout=20) is flinkray.JobStatus.CANCELED
    Path(go).touch()


def test_batch_job_without_a_source_refuses_global_aggregates(own_cluster: ThreadedCluster) -> None:
    def added(env: StreamExecutionEnvironment, rows: DataStream) -> None:
        rows.map(lambda row: 1, Types.LONG()).map(Adding("a")).sink_to(DiscardingSink())

    batch_job = flinkray.BatchJob("no source")
    batch_job.stream(added, inputs=[batch_job.spark(lambda spark: None)])
    job = batch_job.build()
    spark, stream = job.vertices
    scripted = Invokable(SPARK, script(["register", "row a", "finish"]))
    job = replace(job, vertices=(replace(spark, invokable=scripted), stream))
    with pytest.raises(JobExecutionError, match="a BatchJob in which all sources are Spark stages"):
        own_cluster.client.submit(job).result(timeout=300)
