"""Programs whose rows Spark takes, as they become jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flinkray
from flinkray.actors.shared.chain_code import HELD_BY
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import (
    Configuration,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.scheduler.graph.job_graph import EPOCHS_OF, SPARK, STREAM, JobGraph
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.gateway import EPOCHS, RESULT_KIND
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.streaming.sinks.sink import SinkError
from flinkray.user_code import UserCodeError


def into_nothing(rows: Any, checkpoint_id: int) -> None:
    """Takes them."""


def job_of(env: StreamExecutionEnvironment) -> JobGraph:
    return env._job(env.get_stream_graph())


def test_to_spark_stage_is_a_vertex_with_slots_of_its_own() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    conf = {"spark.sql.shuffle.partitions": 7}
    env.from_sequence(1, 9).to_spark(
        into_nothing, "out", executors=3, cpu=2, memory="2g", spark_conf=conf
    )

    job = job_of(env)

    validate(job)
    stage, *others = job.vertices
    assert (stage.invokable.kind, stage.name, stage.parallelism) == (SPARK, "Spark: out", 3)
    assert (stage.slot_profile.cpu, stage.slot_profile.memory) == (2, 2 * 2**30)
    assert stage.invokable.configuration == {
        "spark.sql.shuffle.partitions": "7",
        RESULT_KIND: EPOCHS,
    }
    assert {vertex.invokable.kind for vertex in others} == {STREAM}
    assert stage.slot_sharing_group not in {vertex.slot_sharing_group for vertex in others}
    committers = [v for v in others if "Committer" in v.name]
    assert [v.parallelism for v in committers] == [1]
    assert [v.invokable.configuration.get(EPOCHS_OF) for v in committers] == [str(stage.vertex_id)]


def test_program_may_read_a_dataframe_and_hand_rows_over_to_spark() -> None:
    env = StreamExecutionEnvironment()
    env.from_spark(lambda spark: spark.range(3), source_name="in").to_spark(into_nothing, "out")
    names = [v.name for v in job_of(env).vertices if v.invokable.kind == SPARK]
    assert names == ["Spark: in", "Spark: out"]


def held_by(env: StreamExecutionEnvironment) -> dict[str, set[str]]:
    """By the names of sources and stages."""
    job = job_of(env)
    names = {str(vertex.vertex_id): vertex.name for vertex in job.vertices}
    settings = {v.name: v.invokable.configuration for v in job.vertices if not v.inputs}
    return {
        name.partition(" ->")[0]: {names[one] for one in of_source[HELD_BY].split()}
        for name, of_source in settings.items()
        if HELD_BY in of_source
    }


def test_source_is_paused_by_each_spark_stage_that_takes_its_rows() -> None:
    """Not by a stage behind another stage: the stage in front waits and holds the source back."""
    env = StreamExecutionEnvironment().set_parallelism(2)
    first, second = (
        env.from_collection([1], Types.LONG()).name(name).rebalance() for name in ("1st", "2nd")
    )
    env.from_collection([1], Types.LONG()).name("free").print()
    through = first.union(second).through_spark(lambda rows, _: rows, name="through")
    through.union(second).to_spark(into_nothing, "out")
    second.to_spark(into_nothing, "other")
    assert held_by(env) == {
        "1st": {"Spark: through"},
        "2nd": {"Spark: through", "Spark: out", "Spark: other"},
        "Source: through": {"Spark: out"},
    }


def test_to_spark_in_batch_mode_pauses_no_source() -> None:
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_sequence(1, 9).to_spark(into_nothing)
    assert held_by(env) == {}


def test_to_spark_makes_checkpoints_aligned_and_exactly_once() -> None:
    env = StreamExecutionEnvironment()
    env.enable_checkpointing(1000)
    env.from_sequence(1, 9).to_spark(into_nothing)
    settings = job_of(env).configuration
    assert settings["execution.checkpointing.unaligned.enabled"] == "false"
    assert settings["execution.checkpointing.mode"] == "EXACTLY_ONCE"


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("execution.checkpointing.unaligned.enabled", "true", "needs aligned checkpoints"),
        ("execution.checkpointing.unaligned", "true", "needs aligned checkpoints"),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "needs EXACTLY_ONCE"),
    ],
)
def test_checkpoint_option_that_to_spark_cannot_use_is_refused_by_name(
    option: str, value: str, text: str
) -> None:
    env = StreamExecutionEnvironment()
    env.configure(Configuration().set_string(option, value))
    env.from_sequence(1, 9).to_spark(into_nothing)
    with pytest.raises(ConfigurationError, match=text):
        job_of(env)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"memory": "600m"}, "too small for a Spark executor"),
        ({"executors": 0}, "to_spark takes at least one executor"),
        ({"spark_conf": {"spark.executor.memory": "4g"}}, "spark.executor.memory cannot be set"),
    ],
)
def test_invalid_executor_size_is_refused_before_anything_runs(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        StreamExecutionEnvironment().from_sequence(1, 9).to_spark(into_nothing, **arguments)


def test_argument_of_to_spark_that_is_no_function_is_refused() -> None:
    table: Any = "table"
    with pytest.raises(UserCodeError, match="a DataFrame and the id of a checkpoint, not str"):
        StreamExecutionEnvironment().from_sequence(1, 9).to_spark(table)


def test_declared_type_unknown_to_spark_is_refused_before_anything_runs() -> None:
    kind = Types.ROW_NAMED(["at"], [Types.SQL_TIME()])
    stream = StreamExecutionEnvironment().from_collection([], kind)
    with pytest.raises(SinkError, match="column 'at' is of type time"):
        stream.to_spark(into_nothing)


def test_to_spark_in_a_batch_job_is_refused_with_a_hint_at_returning_the_stream() -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        env.from_sequence(1, 9).to_spark(into_nothing)

    with pytest.raises(ConfigurationError, match=r"return the stream.*BatchJob\.spark"):
        flinkray.BatchJob("job").stream(program)


def test_to_spark_without_a_cluster_is_refused() -> None:
    env = StreamExecutionEnvironment()
    env.from_sequence(1, 9).to_spark(into_nothing)
    run: Callable[[], object] = env.execute
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        run()
