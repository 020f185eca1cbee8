"""Programs that read streaming queries of Spark, as they become jobs."""

from __future__ import annotations

from typing import Any

import pytest

import flinkray
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.scheduler.graph.job_graph import BATCHES_OF, SPARK
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.gateway import PUBLISHED, RESULT_KIND
from flinkray.spark.micro_batches import AS_SOON_AS_POSSIBLE, StreamedFrame
from flinkray.streaming.errors import OperatorError, StreamError
from flinkray.user_code import UserCodeError, load_function


def rates(spark: Any) -> Any:
    return spark.readStream.format("rate").load()


def test_from_spark_stream_is_a_vertex_known_to_the_tasks_that_read_it() -> None:
    env = StreamExecutionEnvironment().set_parallelism(2)
    stream = env.from_spark_stream(
        rates, executors=3, cpu=2, memory="2g", source_name="rates", trigger={"availableNow": True}
    )
    stream.key_by(lambda row: row["value"]).map(str).print()

    job = env._job(env.get_stream_graph())

    validate(job)
    stage, *others = job.vertices
    assert (stage.invokable.kind, stage.name, stage.parallelism) == (SPARK, "Spark: rates", 3)
    assert (stage.slot_profile.cpu, stage.slot_profile.memory) == (2, 2 * 2**30)
    assert stage.invokable.configuration == {RESULT_KIND: PUBLISHED}
    told = [vertex.invokable.configuration.get(BATCHES_OF) for vertex in others]
    assert told == [str(stage.vertex_id), None]


@pytest.mark.parametrize(
    ("arguments", "trigger", "output_mode"),
    [
        ({}, AS_SOON_AS_POSSIBLE, "append"),
        ({"trigger": {"once": True}, "output_mode": "update"}, {"once": True}, "update"),
    ],
)
def test_trigger_and_output_mode_of_from_spark_stream_are_sent_with_its_function(
    arguments: dict[str, Any], trigger: dict[str, object], output_mode: str
) -> None:
    env = StreamExecutionEnvironment()
    function: Any = lambda spark: [spark]  # noqa: E731
    env.from_spark_stream(function, **arguments).print()
    (stage, _) = env._job(env.get_stream_graph()).vertices
    assert isinstance(stage.invokable.code, bytes)
    returned = load_function(stage.invokable.code)("session")
    assert returned == StreamedFrame(["session"], trigger, output_mode)


def test_declared_type_is_the_type_of_the_stream_from_spark() -> None:
    kind = Types.ROW_NAMED(["value"], [Types.LONG()])
    assert StreamExecutionEnvironment().from_spark_stream(rates, type_info=kind).get_type() == kind


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"memory": 0}, "too small for a Spark executor"),
        ({"executors": 0}, "from_spark_stream takes at least one executor"),
        ({"spark_conf": {"spark.master": "local"}}, "spark.master"),
        ({"trigger": {"continuous": "1 second"}}, "give one of processingTime, availableNow, once"),
        ({"trigger": {}}, "give one of"),
        ({"trigger": {"once": True, "availableNow": True}}, "give one of"),
        ({"output_mode": "complete"}, "would repeat all rows"),
        ({"output_mode": "Append"}, "one of append, update"),
    ],
)
def test_invalid_argument_of_from_spark_stream_is_refused_by_name(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text.replace(".", r"\.")):
        StreamExecutionEnvironment().from_spark_stream(rates, **arguments)


def test_argument_of_from_spark_stream_that_is_no_function_is_refused() -> None:
    frame: Any = "a frame"
    with pytest.raises(UserCodeError, match="from_spark_stream takes a function of a SparkSession"):
        StreamExecutionEnvironment().from_spark_stream(frame)


def test_from_spark_stream_in_batch_mode_is_refused_as_unbounded() -> None:
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_spark_stream(rates).print()
    with pytest.raises(StreamError, match="batch mode needs bounded sources"):
        env.get_stream_graph()


def test_from_spark_stream_without_a_cluster_is_refused() -> None:
    env = StreamExecutionEnvironment()
    env.from_spark_stream(rates, source_name="rates").print()
    with pytest.raises(
        (StreamError, OperatorError), match=r"'rates' runs in the slots of a cluster"
    ):
        env.execute()


def test_from_spark_stream_in_a_batch_job_is_refused_as_unbounded() -> None:
    def reads(env: StreamExecutionEnvironment) -> None:
        env.from_spark_stream(rates).print()

    with pytest.raises(StreamError, match="batch mode needs bounded sources"):
        flinkray.BatchJob("stages").stream(reads)
