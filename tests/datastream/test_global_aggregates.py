"""Global aggregates through the API: in one process, and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from flinkray.streaming.errors import OperatorError
from flinkray.streaming.functions.global_aggregates import (
    GlobalAggregateError,
    GlobalAggregatesLostError,
)
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.test_cluster_takeover import CONFIGURATION, RESTARTS, kill_job_master
from tests.datastream.threads import none_left


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    """One of its own, whose processes may be killed."""
    with (
        none_left(),
        threaded_cluster(str(tmp_path / "cluster"), configuration=CONFIGURATION) as cluster,
    ):
        yield cluster


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
def test_updates_return_running_results_and_names_are_independent(
    where: str, cluster: ThreadedCluster
) -> None:
    """JM-16."""
    env = ENVIRONMENTS[where](cluster).set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4]).map(Adding("a"))
    assert list(numbers.execute_and_collect()) == [(1,), (3,), (6,), (10,)]
    both = env.from_collection([1, 2]).map(Adding("a", "b"))
    assert list(both.execute_and_collect()) == [(1, 1), (3, 3)], "another job has its own"


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_all_subtasks_and_operators_of_a_job_share_an_aggregate(
    where: str, cluster: ThreadedCluster
) -> None:
    """JM-16."""
    env = ENVIRONMENTS[where](cluster).set_parallelism(2)
    ones = env.from_sequence(1, 20).map(lambda _: 1)
    first, second = (ones.rebalance().map(Adding("all")) for _ in range(2))
    results = first.union(second).execute_and_collect()
    assert sorted(results) == [(n,) for n in range(1, 41)]


@pytest.mark.parametrize(
    ("where", "error"), [("in one process", OperatorError), ("on a cluster", JobExecutionError)]
)
def test_failure_of_the_function_fails_the_caller_with_its_traceback(
    where: str, error: type[Exception], cluster: ThreadedCluster
) -> None:
    env = ENVIRONMENTS[where](cluster)
    with pytest.raises(error) as raised:
        list(env.from_collection([-1]).map(Adding("a")).execute_and_collect())
    text = str(raised.value)
    assert "the function of the global aggregate 'a' failed" in text
    assert 'raise ValueError("negative")' in text
    assert "in operator 'Map'" in text


def test_failure_of_the_function_adds_nothing(cluster: ThreadedCluster) -> None:
    class Tolerant(Adding):
        def map(self, value: int) -> Any:
            try:
                return self.add("a", value)
            except GlobalAggregateError as error:
                return error.name

    numbers = on(cluster).from_collection([2, -1, 3]).map(Tolerant())
    assert list(numbers.execute_and_collect()) == [2, "a", 5]


def test_values_stay_when_tasks_restart_and_job_masters_die(
    cluster: ThreadedCluster, tmp_path: Path
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

    numbers = on(cluster, **RESTARTS).from_collection([1]).map(FailingOnce())
    results = numbers.execute_and_collect()
    job = cluster.client.job(cluster.client.list_jobs()[0].job_id)
    wait_until(Path(added).exists, 150, "the second attempt to add its value")
    kill_job_master(cluster, job)
    Path(go).touch()
    assert list(results) == [(2, 3)]


def test_task_whose_aggregate_function_fails_is_restarted(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    failed = str(tmp_path / "failed")

    class FailingOnce(Total):
        def add(self, value: int, accumulator: int) -> int:
            if not Path(failed).exists():
                Path(failed).touch()
                raise ValueError("once")
            return super().add(value, accumulator)

    class Adds(Adding):
        def map(self, value: int) -> Any:
            update = self.aggregates.update_global_aggregate
            return self.attempt, update("a", value, FailingOnce())

    results = on(cluster, **RESTARTS).from_collection([5]).map(Adds()).execute_and_collect()
    assert list(results) == [(1, 5)]


def test_task_that_does_not_catch_the_loss_of_aggregates_is_restarted(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    added, go = str(tmp_path / "added"), str(tmp_path / "go")

    class AddsTwice(Adding):
        def map(self, value: int) -> Any:
            self.add("a", value)
            Path(added).touch()
            wait_until(Path(go).exists, 300, "the death of the StreamCoordinator")
            return self.attempt, self.add("a", value)

    results = on(cluster, **RESTARTS).from_collection([5]).map(AddsTwice()).execute_and_collect()
    wait_until(Path(added).exists, 150, "the first value to be added")
    cluster.crash("StreamCoordinator")
    Path(go).touch()
    assert list(results) == [(1, 10)]


def test_death_of_the_stream_coordinator_is_reported_once_and_begins_a_new_aggregate(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    added, go = str(tmp_path / "added"), str(tmp_path / "go")

    class Surviving(Adding):
        def map(self, value: int) -> Any:
            results: list[object] = [self.add("a", value)]
            Path(added).touch()
            wait_until(Path(go).exists, 300, "the death of the StreamCoordinator")
            for _ in range(3):
                try:
                    results.append(self.add("a", value))
                except GlobalAggregatesLostError as error:
                    results.append((error.name, error.retryable))
            return results

    results = on(cluster).from_collection([7]).map(Surviving()).execute_and_collect()
    wait_until(Path(added).exists, 150, "the first value to be added")
    cluster.crash("StreamCoordinator")
    Path(go).touch()
    assert list(results) == [[7, ("a", True), 7, 14]]


def test_task_that_waits_for_an_update_is_cancelled(
    cluster: ThreadedCluster, tmp_path: Path
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

    env = on(cluster)
    env.from_collection([1]).map(Waiting()).sink_to(DiscardingSink())
    job = cluster.client.job(env.execute_async("waits").get_job_id())
    wait_until(Path(begun).exists, 150, "the function to run")
    job.cancel()
    assert job.wait(timeout=20) is flinkray.JobStatus.CANCELED
    Path(go).touch()


def test_batch_job_without_a_source_refuses_global_aggregates(cluster: ThreadedCluster) -> None:
    def added(env: StreamExecutionEnvironment, rows: DataStream) -> None:
        rows.map(lambda row: 1, Types.LONG()).map(Adding("a")).sink_to(DiscardingSink())

    batch_job = flinkray.BatchJob("no source")
    batch_job.stream(added, inputs=[batch_job.spark(lambda spark: None)])
    job = batch_job.build()
    spark, stream = job.vertices
    scripted = Invokable(SPARK, script(["register", "row a", "finish"]))
    job = replace(job, vertices=(replace(spark, invokable=scripted), stream))
    with pytest.raises(JobExecutionError, match="a BatchJob in which all sources are Spark stages"):
        cluster.client.submit(job).result(timeout=300)
