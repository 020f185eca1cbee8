"""Programs that read from Spark, write to Spark or look rows up in Spark, as they become jobs."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

import flinkray
from flinkray.actors.shared.chain_code import HELD_BY, HELD_BY_LOOK_UPS
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import ExecutionGraphID
from flinkray.datastream import (
    Configuration,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.job_graph import BATCHES_OF, EPOCHS_OF, SPARK, JobGraph, JobVertex
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph
from flinkray.spark.gateway import EPOCHS, PARTITIONS, PUBLISHED, RESULT_KIND, THROUGH
from flinkray.spark.micro_batches import AS_SOON_AS_POSSIBLE, StreamedFrame
from flinkray.spark.session_requests import GUEST_PROFILE, take_request
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.graph import operator_id_of
from flinkray.streaming.sinks.sink import SinkError
from flinkray.user_code import UserCodeError, load_function


def frame(spark: Any) -> Any:
    return spark.range(10)


def taken(rows: Any, checkpoint_id: int) -> None:
    """A function of `to_spark`."""


def both(value: Any, row: Any) -> Any:
    return value, row


def identity(value: Any) -> Any:
    return value


def from_spark(env: StreamExecutionEnvironment, function: Any = frame, **settings: Any) -> Any:
    return env.from_spark(function, **settings).print()


def from_spark_stream(
    env: StreamExecutionEnvironment, function: Any = frame, **settings: Any
) -> Any:
    return env.from_spark_stream(function, **settings).print()


def through_spark(env: StreamExecutionEnvironment, function: Any = both, **settings: Any) -> Any:
    return env.from_sequence(1, 9).through_spark(function, **settings).print()


def to_spark(env: StreamExecutionEnvironment, function: Any = taken, **settings: Any) -> Any:
    return env.from_sequence(1, 9).to_spark(function, **settings)


def spark_table(env: StreamExecutionEnvironment, function: Any = frame, **settings: Any) -> Any:
    table = flinkray.spark_table(function, **{"key": "id", **settings})
    return env.from_sequence(1, 9).key_by(identity).look_up(table, both).print()


PROGRAMS = [from_spark, from_spark_stream, through_spark, to_spark, spark_table]
BATCH = RuntimeExecutionMode.BATCH


def job_of(env: StreamExecutionEnvironment) -> JobGraph:
    job = env._job(env.get_stream_graph())
    validate(job)
    return job


def stages_of(job: JobGraph) -> list[JobVertex]:
    return [vertex for vertex in job.vertices if vertex.invokable.kind == SPARK]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_with_a_spark_stage_needs_a_cluster(program: Any) -> None:
    env = StreamExecutionEnvironment()
    program(env)
    with pytest.raises((StreamError, OperatorError), match="runs in the slots of a cluster"):
        env.execute()


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (from_spark, ConfigurationError, r"BatchJob\.spark"),
        (from_spark_stream, StreamError, "batch mode needs bounded sources"),
        (to_spark, ConfigurationError, r"return the stream.*BatchJob\.spark"),
        (spark_table, ConfigurationError, r"spark_table: add a stage with BatchJob\.spark"),
    ],
)
def test_spark_stage_in_a_program_of_a_batch_job_is_refused(
    program: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        flinkray.BatchJob("job").stream(lambda env: program(env) and None)


@pytest.mark.parametrize("program", [from_spark_stream, through_spark])
def test_spark_stage_without_end_is_refused_in_batch_mode(program: Any) -> None:
    env = StreamExecutionEnvironment().set_runtime_mode(BATCH)
    program(env)
    with pytest.raises(StreamError, match="batch mode needs bounded sources"):
        env.get_stream_graph()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (from_spark, "from_spark takes a function of a SparkSession, not list"),
        (from_spark_stream, "from_spark_stream takes a function of a SparkSession"),
        (through_spark, "through_spark takes a function of a DataFrame and"),
        (to_spark, "a DataFrame and the id of a checkpoint, not list"),
        (spark_table, "spark_table takes a function of a SparkSession"),
    ],
)
def test_argument_that_is_no_function_is_refused(program: Any, text: str) -> None:
    with pytest.raises(UserCodeError, match=text):
        program(StreamExecutionEnvironment(), [1, 2, 3])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"memory": 0}, "too small for a Spark executor"),
        ({"memory": "600m"}, "too small for a Spark executor"),
        ({"memory": "many"}, "memory='many'"),
        ({"executors": 0}, "{} takes at least one executor"),
        ({"spark_conf": {"spark.executor.memory": "4g"}}, "spark.executor.memory cannot be set"),
        ({"spark_conf": {"spark.master": "local"}}, "spark.master"),
    ],
)
def test_invalid_executors_of_a_spark_stage_are_refused_and_named_in_the_error(
    program: Any, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text.format(program.__name__)):
        program(StreamExecutionEnvironment(), **settings)


@pytest.mark.parametrize("program", [from_spark, through_spark, to_spark, spark_table])
def test_invalid_name_of_a_spark_session_is_refused(program: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be named"):
        program(StreamExecutionEnvironment(), session="a,b")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trigger": {"continuous": "1 second"}}, "give one of processingTime, availableNow, once"),
        ({"trigger": {}}, "give one of"),
        ({"trigger": {"once": True, "availableNow": True}}, "give one of"),
        ({"output_mode": "complete"}, "would repeat all rows"),
        ({"output_mode": "Append"}, "one of append, update"),
    ],
)
def test_invalid_trigger_or_output_mode_is_refused_and_named_in_the_error(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        from_spark_stream(StreamExecutionEnvironment(), **settings)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ([], "the key of the table 'Spark table' is the name of a column"),
        (["id", 3], r"got \['id', 3\]"),
        ("", "got ''"),
    ],
)
def test_invalid_key_of_a_spark_table_is_refused(key: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        flinkray.spark_table(frame, key)


def test_look_up_without_a_table_or_a_function_is_refused() -> None:
    nothing: Any = [1, 2, 3]
    numbers = StreamExecutionEnvironment().from_sequence(1, 9).key_by(identity)
    with pytest.raises(TypeError, match=r"look_up takes what flinkray\.spark_table"):
        numbers.look_up(nothing, both)
    with pytest.raises(TypeError, match="an object with look_up"):
        numbers.look_up(flinkray.spark_table(frame, "id"), nothing)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("execution.checkpointing.unaligned.enabled", "true", "needs aligned checkpoints"),
        ("execution.checkpointing.unaligned", "true", "needs aligned checkpoints"),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "needs EXACTLY_ONCE"),
    ],
)
def test_checkpoint_option_that_to_spark_cannot_use_is_refused_and_named(
    option: str, value: str, text: str
) -> None:
    env = StreamExecutionEnvironment()
    env.configure(Configuration().set_string(option, value))
    to_spark(env)
    with pytest.raises(ConfigurationError, match=text):
        job_of(env)


def test_declared_type_unknown_to_spark_is_refused_before_anything_runs() -> None:
    kind = Types.ROW_NAMED(["at"], [Types.SQL_TIME()])
    stream = StreamExecutionEnvironment().from_collection([], kind)
    with pytest.raises(SinkError, match="column 'at' is of type time"):
        stream.to_spark(taken)


# --- the stage in the job -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "name", "result"),
    [
        (from_spark, "source_name", PARTITIONS),
        (from_spark_stream, "source_name", PUBLISHED),
        (through_spark, "name", THROUGH),
        (to_spark, "name", EPOCHS),
        (spark_table, "name", PARTITIONS),
    ],
)
def test_spark_stage_is_a_vertex_with_slots_of_its_own(
    program: Any, name: str, result: str
) -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    conf = {"spark.sql.shuffle.partitions": 7}
    program(env, executors=3, cpu=2, memory="2g", spark_conf=conf, **{name: "mine"})
    job = job_of(env)
    (stage,) = stages_of(job)
    assert (stage.name, stage.parallelism) == ("Spark: mine", 3)
    assert (stage.slot_profile.cpu, stage.slot_profile.memory) == (2, 2 * 2**30)
    assert stage.invokable.configuration == {
        "spark.sql.shuffle.partitions": "7", RESULT_KIND: result,
    }  # fmt: skip
    groups = [vertex.slot_sharing_group for vertex in job.vertices]
    assert groups.count(stage.slot_sharing_group) == 1


def test_stages_that_share_a_session_have_slots_without_cpu_and_request_executors() -> None:
    """The slot of a stage holds only the process of its function."""
    env = StreamExecutionEnvironment()
    shared: dict[str, Any] = {"executors": 3, "cpu": 2, "memory": "2g", "session": "shared"}
    table = flinkray.spark_table(frame, "id", **shared)
    stream = env.from_spark(frame, **shared).through_spark(both, **shared)
    stream.key_by("id").look_up(table, both).to_spark(taken, **shared)
    stages = stages_of(job_of(env))
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


def test_declared_type_is_the_type_of_the_stream_from_spark() -> None:
    kind = Types.ROW_NAMED(["id"], [Types.LONG()])
    env = StreamExecutionEnvironment()
    for stream in (
        env.from_spark(frame, type_info=kind),
        env.from_spark_stream(frame, type_info=kind),
        env.from_sequence(1, 9).through_spark(both, type_info=kind),
    ):
        assert stream.get_type() == kind


@pytest.mark.parametrize(
    ("settings", "trigger", "output_mode"),
    [
        ({}, AS_SOON_AS_POSSIBLE, "append"),
        ({"trigger": {"once": True}, "output_mode": "update"}, {"once": True}, "update"),
    ],
)
def test_trigger_and_output_mode_of_from_spark_stream_are_sent_with_its_function(
    settings: dict[str, Any], trigger: dict[str, object], output_mode: str
) -> None:
    env = StreamExecutionEnvironment()
    from_spark_stream(env, lambda spark: [spark], **settings)
    (stage,) = stages_of(job_of(env))
    assert isinstance(stage.invokable.code, bytes)
    returned = load_function(stage.invokable.code)("session")
    assert returned == StreamedFrame(["session"], trigger, output_mode)


@pytest.mark.parametrize(
    ("program", "before", "behind"),
    [(from_spark_stream, 0, 1), (through_spark, 1, 1), (to_spark, 1, 0)],
)
def test_tasks_before_and_after_a_spark_stage_have_its_vertex_id_in_their_settings(
    program: Any, before: int, behind: int
) -> None:
    """A savepoint without the rows between these tasks is refused."""
    env = StreamExecutionEnvironment().set_parallelism(2)
    program(env)
    job = job_of(env)
    (stage,) = stages_of(job)
    taker = str(stage.vertex_id)
    told = [vertex.invokable.configuration for vertex in job.vertices]
    committers = [vertex for vertex in job.vertices if "Committer" in vertex.name]
    assert [vertex.parallelism for vertex in committers] == [1] * before
    assert [it[EPOCHS_OF] for it in told if EPOCHS_OF in it] == [taker] * before
    assert [it[BATCHES_OF] for it in told if BATCHES_OF in it] == [taker] * behind
    if before and behind:
        graph = CheckpointedGraph(ExecutionGraph(job, ExecutionGraphID.generate(), 0.0), ())
        assert [taker in vertex.hands_over_to for vertex in graph.vertices].count(True) == 1
        assert [vertex.brings_back_of for vertex in graph.vertices].count(taker) == 1
        assert graph.unfinished == [taker]


@pytest.mark.parametrize("program", [through_spark, to_spark])
def test_spark_stage_that_reads_stream_rows_sets_aligned_exactly_once_checkpoints(
    program: Any,
) -> None:
    env = StreamExecutionEnvironment()
    env.enable_checkpointing(1000)
    program(env)
    settings = job_of(env).configuration
    assert settings["execution.checkpointing.unaligned.enabled"] == "false"
    assert settings["execution.checkpointing.mode"] == "EXACTLY_ONCE"


def held_by(env: StreamExecutionEnvironment) -> dict[str, set[str]]:
    """Names of the Spark stages that pause a source, by the name of the source."""
    job = job_of(env)
    names = {str(vertex.vertex_id): vertex.name for vertex in job.vertices}
    settings = {v.name: v.invokable.configuration for v in job.vertices if not v.inputs}
    return {
        name.partition(" ->")[0]: {names[one] for one in of_source[HELD_BY].split()}
        for name, of_source in settings.items()
        if HELD_BY in of_source
    }


def test_source_can_be_paused_by_each_spark_stage_that_reads_its_rows_directly() -> None:
    """Not by a stage behind another stage: the stage in front waits and holds the source back."""
    env = StreamExecutionEnvironment().set_parallelism(2)
    first, second = (
        env.from_collection([1], Types.LONG()).name(name).rebalance() for name in ("1st", "2nd")
    )
    env.from_collection([1], Types.LONG()).name("free").print()
    through = first.union(second).through_spark(lambda rows, _: rows, name="through")
    through.union(second).to_spark(taken, "out")
    second.to_spark(taken, "other")
    assert held_by(env) == {
        "1st": {"Spark: through"},
        "2nd": {"Spark: through", "Spark: out", "Spark: other"},
        "Source: through": {"Spark: out"},
    }


@pytest.mark.parametrize("program", [to_spark, spark_table])
def test_no_source_is_paused_for_spark_in_batch_mode(program: Any) -> None:
    env = StreamExecutionEnvironment().set_runtime_mode(BATCH)
    program(env)
    assert held_by(env) == {}
    assert held_by_look_ups(env) == []


# --- look-ups -------------------------------------------------------------------------------------


def test_spark_table_that_is_looked_up_twice_is_one_stage_with_one_source() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    table = flinkray.spark_table(frame, "id", name="planes")
    numbers = env.from_sequence(1, 9).key_by(identity, Types.LONG())
    numbers.look_up(table, both).key_by(itemgetter(0)).look_up(table, both).print()
    job = job_of(env)
    assert len(stages_of(job)) == 1
    names = [vertex.name for vertex in job.vertices]
    assert names.count("Source: planes") == 1
    assert sum(name.startswith("Look up planes") for name in names) == 2
    other = StreamExecutionEnvironment()
    other.from_sequence(1, 9).key_by(identity).look_up(table, both).print()
    assert len(stages_of(job_of(other))) == 1


def held_by_look_ups(env: StreamExecutionEnvironment) -> list[set[str]]:
    """Uids of the look-ups that pause a source, for each such source."""
    names = {operator_id_of(uid): uid for uid in ("first", "second")}
    told = [vertex.invokable.configuration.get(HELD_BY_LOOK_UPS) for vertex in job_of(env).vertices]
    return [{names[one] for one in held.split()} for held in told if held is not None]


def test_stream_source_waits_for_the_tables_of_its_look_ups_and_a_table_does_not() -> None:
    """A table does not wait either when the records come from another look-up."""
    env = StreamExecutionEnvironment().set_parallelism(2)
    numbers, others = env.from_sequence(1, 9), env.from_collection([(1,)])
    one = numbers.key_by(identity).look_up(flinkray.spark_table(frame, "id"), both)
    one.uid("first")
    key = itemgetter(0)
    table = flinkray.spark_table(frame, "id", name="2nd")
    two = one.union(others).key_by(key).look_up(table, both)
    two.uid("second").print()
    env.from_collection([2], Types.LONG()).print()
    assert held_by_look_ups(env) == [{"first", "second"}, {"second"}]


def test_source_of_a_spark_table_has_the_uid_of_the_table_and_is_read_completely() -> None:
    env = StreamExecutionEnvironment()
    env.get_config().disable_auto_generated_uids()
    numbers = env.from_sequence(1, 9).uid("numbers").key_by(identity)
    found = numbers.look_up(flinkray.spark_table(frame, "id", uid="planes"), both).uid("found")
    found.print().uid("printed")
    (node,) = (node for node in env.get_stream_graph().nodes if node.uid == "planes")
    assert isinstance(node.operator, SourceOperator)
    assert node.operator.source.is_needed_whole


def test_spark_table_key_of_several_columns_is_a_tuple() -> None:
    table = flinkray.spark_table(frame, ["origin", "hour"])
    assert table.key_selector({"hour": 7, "origin": "JFK"}) == ("JFK", 7)
    assert flinkray.spark_table(frame, ["hour"]).key_selector == "hour"


def test_look_up_sets_exactly_once_checkpoints_and_refuses_at_least_once() -> None:
    env = StreamExecutionEnvironment()
    spark_table(env)
    graph = env.get_stream_graph()
    assert env._job(graph).configuration["execution.checkpointing.mode"] == "EXACTLY_ONCE"
    env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match="each row of a spark_table has to be read once"):
        env._job(graph)
