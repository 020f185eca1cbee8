"""Programs whose rows go through Spark and come back, as they become jobs."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import ExecutionGraphID
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.job_graph import BATCHES_OF, EPOCHS_OF, SPARK
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph
from flinkray.spark.gateway import RESULT_KIND, THROUGH
from flinkray.streaming.errors import StreamError
from flinkray.user_code import UserCodeError


def unchanged(rows: Any, checkpoint_id: int) -> Any:
    return rows


def test_through_spark_is_one_stage_known_to_the_tasks_before_and_after_it() -> None:
    env = StreamExecutionEnvironment()
    env.enable_checkpointing(1000)
    came = env.from_sequence(1, 9).through_spark(unchanged, name="models", executors=2)
    came.map(str).print()

    job = env._job(env.get_stream_graph())

    validate(job)
    (stage,) = (vertex for vertex in job.vertices if vertex.invokable.kind == SPARK)
    assert (stage.name, stage.parallelism) == ("Spark: models", 2)
    assert stage.invokable.configuration == {RESULT_KIND: THROUGH}
    told = [vertex.invokable.configuration for vertex in job.vertices]
    assert [it[EPOCHS_OF] for it in told if EPOCHS_OF in it] == [str(stage.vertex_id)]
    assert [it[BATCHES_OF] for it in told if BATCHES_OF in it] == [str(stage.vertex_id)]
    assert job.configuration["execution.checkpointing.unaligned.enabled"] == "false"


def test_declared_type_is_the_type_of_the_stream_through_spark() -> None:
    kind = Types.ROW_NAMED(["value"], [Types.LONG()])
    stream = StreamExecutionEnvironment().from_sequence(1, 9)
    assert stream.through_spark(unchanged, type_info=kind).get_type() == kind


def test_invalid_argument_of_through_spark_is_refused_by_name() -> None:
    stream = StreamExecutionEnvironment().from_sequence(1, 9)
    with pytest.raises(ConfigurationError, match="through_spark takes at least one executor"):
        stream.through_spark(unchanged, executors=0)
    nothing: Any = None
    with pytest.raises(UserCodeError, match="through_spark takes a function of a DataFrame and"):
        stream.through_spark(nothing)


def test_through_spark_in_batch_mode_is_refused() -> None:
    env = StreamExecutionEnvironment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_sequence(1, 9).through_spark(unchanged).print()
    with pytest.raises(StreamError, match="batch mode needs bounded sources"):
        env.get_stream_graph()


def test_job_tells_checkpoints_which_tasks_are_before_and_behind_a_spark_stage() -> None:
    """A savepoint without the rows between these tasks is refused."""
    env = StreamExecutionEnvironment()
    env.from_sequence(1, 9).through_spark(unchanged).print()
    job = env._job(env.get_stream_graph())
    (stage,) = (vertex for vertex in job.vertices if vertex.invokable.kind == SPARK)
    graph = CheckpointedGraph(ExecutionGraph(job, ExecutionGraphID.generate(), 0.0), ())
    taker = str(stage.vertex_id)
    assert [taker in vertex.hands_over_to for vertex in graph.vertices].count(True) == 1
    assert [vertex.brings_back_of for vertex in graph.vertices].count(taker) == 1
    assert graph.unfinished == [taker]
