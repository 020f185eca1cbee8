"""Programs that read DataFrames, as they become jobs."""

from __future__ import annotations

from typing import Any

import pytest

import flinkray
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.scheduler.graph.job_graph import SPARK, STREAM, JobGraph
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.gateway import PARTITIONS, RESULT_KIND
from flinkray.spark.shared_session import GUEST_PROFILE, take_request
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.user_code import UserCodeError


def numbers(spark: Any) -> Any:
    return spark.range(10)


def passed_on(rows: Any, checkpoint_id: int) -> Any:
    return rows


def taken(rows: Any, checkpoint_id: int) -> None: ...


def looked_up(row: Any, found: Any) -> Any:
    return row


def job_of(env: StreamExecutionEnvironment) -> JobGraph:
    return env._job(env.get_stream_graph())


def test_from_spark_stage_is_a_vertex_with_slots_of_its_own() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    conf = {"spark.sql.shuffle.partitions": 7}
    stream = env.from_spark(
        numbers, executors=3, cpu=2, memory="2g", spark_conf=conf, source_name="numbers"
    )
    stream.map(str).print()

    job = job_of(env)

    validate(job)
    stage, *others = job.vertices
    assert (stage.invokable.kind, stage.name, stage.parallelism) == (SPARK, "Spark: numbers", 3)
    assert (stage.slot_profile.cpu, stage.slot_profile.memory) == (2, 2 * 2**30)
    assert stage.invokable.configuration == {
        "spark.sql.shuffle.partitions": "7",
        RESULT_KIND: PARTITIONS,
    }
    assert {vertex.invokable.kind for vertex in others} == {STREAM}
    assert stage.slot_sharing_group not in {vertex.slot_sharing_group for vertex in others}


def test_stages_that_share_a_session_have_slots_without_cpu_and_request_executors() -> None:
    """The slot of a stage holds only the process of its function."""
    env = StreamExecutionEnvironment()
    shared: dict[str, Any] = {"executors": 3, "cpu": 2, "memory": "2g", "session": "shared"}
    table = flinkray.spark_table(numbers, "id", **shared)
    stream = env.from_spark(numbers, **shared).through_spark(passed_on, **shared)
    stream.key_by("id").look_up(table, looked_up).to_spark(taken, **shared)

    job = job_of(env)

    validate(job)
    stages = [vertex for vertex in job.vertices if vertex.invokable.kind == SPARK]
    assert len(stages) == 4
    assert len({stage.slot_sharing_group for stage in stages}) == 4
    for stage in stages:
        assert (stage.parallelism, stage.slot_profile) == (1, GUEST_PROFILE)
        configuration = dict(stage.invokable.configuration)
        assert configuration.pop(RESULT_KIND)
        request = take_request(configuration)
        assert request is not None
        assert (request.name, request.executors) == ("shared", 3)
        assert (request.slot_profile.cpu, request.slot_profile.memory) == (2, 2 * 2**30)
        assert configuration == {}


def test_invalid_session_name_is_refused_by_from_spark() -> None:
    with pytest.raises(ConfigurationError, match="cannot be named"):
        StreamExecutionEnvironment().from_spark(numbers, session="a,b")


def test_declared_type_is_the_type_of_the_stream_from_spark() -> None:
    kind = Types.ROW_NAMED(["id"], [Types.LONG()])
    assert StreamExecutionEnvironment().from_spark(numbers, type_info=kind).get_type() == kind


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"memory": 0}, "too small for a Spark executor"),
        ({"memory": "600m"}, "too small for a Spark executor"),
        ({"memory": "many"}, "memory='many'"),
        ({"executors": 0}, "at least one executor"),
        ({"spark_conf": {"spark.executor.memory": "4g"}}, "spark.executor.memory cannot be set"),
    ],
)
def test_invalid_executor_size_is_refused_before_anything_runs(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        StreamExecutionEnvironment().from_spark(numbers, **arguments)


def test_argument_of_from_spark_that_is_no_function_is_refused() -> None:
    frame: Any = [1, 2, 3]
    with pytest.raises(
        UserCodeError, match=r"from_spark takes a function of a SparkSession, not l"
    ):
        StreamExecutionEnvironment().from_spark(frame)


def test_from_spark_in_a_batch_job_is_refused_with_a_hint_at_batch_job_spark() -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        env.from_spark(numbers).print()

    with pytest.raises(ConfigurationError, match=r"BatchJob\.spark"):
        flinkray.BatchJob("job").stream(program)


def test_from_spark_without_a_cluster_is_refused() -> None:
    env = StreamExecutionEnvironment()
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        list(env.from_spark(numbers).execute_and_collect())
