"""Programs that look rows of Spark's tables up, as they become jobs."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

import flinkray
from flinkray.actors.shared.chain_code import HELD_BY_LOOK_UPS
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment, Types
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.scheduler.graph.job_graph import SPARK, JobGraph
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.gateway import PARTITIONS, RESULT_KIND
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.graph import operator_id_of
from flinkray.user_code import UserCodeError


def planes(spark: Any) -> Any:
    return spark.range(10)


def both(value: Any, row: Any) -> Any:
    return value, row


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(2)


def job_of(env: StreamExecutionEnvironment) -> JobGraph:
    return env._job(env.get_stream_graph())


def test_spark_table_that_is_looked_up_twice_is_one_stage_with_one_source() -> None:
    env = environment()
    table = flinkray.spark_table(planes, "id", name="planes", executors=3, memory="2g")
    numbers = env.from_sequence(1, 9).key_by(lambda n: n)
    numbers.look_up(table, both).key_by(itemgetter(0)).look_up(table, both).print()

    job = job_of(env)

    validate(job)
    (stage,) = (vertex for vertex in job.vertices if vertex.invokable.kind == SPARK)
    assert (stage.name, stage.parallelism) == ("Spark: planes", 3)
    assert stage.invokable.configuration == {RESULT_KIND: PARTITIONS}
    names = [vertex.name for vertex in job.vertices]
    assert names.count("Source: planes") == 1
    assert sum(name.startswith("Look up planes") for name in names) == 2


def held_by(env: StreamExecutionEnvironment) -> dict[str, set[str]]:
    """By the names of sources, the look-ups' uids."""
    names = {operator_id_of(uid): uid for uid in ("first", "second")}
    return {
        vertex.name: {names[one] for one in held.split()}
        for vertex in job_of(env).vertices
        if (held := vertex.invokable.configuration.get(HELD_BY_LOOK_UPS)) is not None
    }


def test_stream_source_waits_for_the_tables_of_its_look_ups_and_a_table_does_not() -> None:
    """A table does not wait either when the records come from another look-up."""
    env = environment()
    numbers, others = env.from_sequence(1, 9), env.from_collection([(1,)])
    one = numbers.key_by(lambda n: n).look_up(flinkray.spark_table(planes, "id"), both)
    one.uid("first")
    key = itemgetter(0)
    table = flinkray.spark_table(planes, "id", name="2nd")
    two = one.union(others).key_by(key).look_up(table, both)
    two.uid("second").print()
    env.from_collection([2], Types.LONG()).print()
    assert list(held_by(env).values()) == [{"first", "second"}, {"second"}]


def test_look_up_in_batch_mode_pauses_no_source() -> None:
    env = environment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    numbers = env.from_sequence(1, 9).key_by(lambda n: n)
    numbers.look_up(flinkray.spark_table(planes, "id"), both).uid("first").print()
    assert held_by(env) == {}


def test_spark_table_can_be_looked_up_by_programs_of_several_environments() -> None:
    table = flinkray.spark_table(planes, "id")
    for env in (environment(), environment()):
        env.from_sequence(1, 9).key_by(lambda n: n).look_up(table, both).print()
        validate(job_of(env))


def test_source_of_a_spark_table_has_its_uid_and_must_be_read_completely() -> None:
    env = environment()
    env.get_config().disable_auto_generated_uids()
    numbers = env.from_sequence(1, 9).uid("numbers").key_by(lambda n: n)
    found = numbers.look_up(flinkray.spark_table(planes, "id", uid="planes"), both).uid("found")
    found.print().uid("printed")

    graph = env.get_stream_graph()

    (node,) = (node for node in graph.nodes if node.uid == "planes")
    assert isinstance(node.operator, SourceOperator)
    assert node.operator.source.is_needed_whole


def test_key_of_several_columns_is_a_tuple() -> None:
    table = flinkray.spark_table(planes, ["origin", "hour"])
    assert table.key_selector({"hour": 7, "origin": "JFK"}) == ("JFK", 7)
    assert flinkray.spark_table(planes, ["hour"]).key_selector == "hour"


def test_look_up_in_a_stream_with_a_declared_key_type_is_a_valid_job() -> None:
    env = environment()
    numbers = env.from_sequence(1, 9).key_by(lambda n: n, Types.LONG())
    numbers.look_up(flinkray.spark_table(planes, "id"), both).print()
    validate(job_of(env))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key": []}, "the key of the table 'Spark table' is the name of a column"),
        ({"key": ["id", 3]}, r"got \['id', 3\]"),
        ({"key": ""}, "got ''"),
        ({"memory": "600m"}, "too small for a Spark executor"),
        ({"executors": 0}, "spark_table takes at least one executor"),
        ({"spark_conf": {"spark.executor.memory": "4g"}}, "spark.executor.memory cannot be set"),
    ],
)
def test_invalid_argument_of_spark_table_is_refused_by_name(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        flinkray.spark_table(planes, **{"key": "id", **arguments})


def test_argument_that_is_no_function_or_no_table_is_refused() -> None:
    nothing: Any = [1, 2, 3]
    with pytest.raises(UserCodeError, match="spark_table takes a function of a SparkSession"):
        flinkray.spark_table(nothing, "id")
    numbers = environment().from_sequence(1, 9).key_by(lambda n: n)
    with pytest.raises(TypeError, match=r"look_up takes what flinkray\.spark_table"):
        numbers.look_up(nothing, both)
    with pytest.raises(TypeError, match="an object with look_up"):
        numbers.look_up(flinkray.spark_table(planes, "id"), nothing)


def test_look_up_sets_exactly_once_checkpoints_and_refuses_at_least_once() -> None:
    env = environment()
    env.from_sequence(1, 9).key_by(lambda n: n).look_up(
        flinkray.spark_table(planes, "id"), both
    ).print()
    graph = env.get_stream_graph()
    assert env._job(graph).configuration["execution.checkpointing.mode"] == "EXACTLY_ONCE"
    env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match="each row of a spark_table has to be read once"):
        env._job(graph)


def test_look_up_in_a_batch_job_is_refused_with_a_hint_at_batch_job_spark() -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        table = flinkray.spark_table(planes, "id")
        env.from_sequence(1, 9).key_by(lambda n: n).look_up(table, both).print()

    with pytest.raises(ConfigurationError, match=r"spark_table: add a stage with BatchJob\.spark"):
        flinkray.BatchJob("job").stream(program)


def test_look_up_of_a_spark_table_without_a_cluster_is_refused() -> None:
    env = environment()
    table = flinkray.spark_table(planes, "id")
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        list(env.from_sequence(1, 9).key_by(lambda n: n).look_up(table, both).execute_and_collect())
