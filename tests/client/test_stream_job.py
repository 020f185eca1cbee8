"""What a stream program becomes as a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.client.stream_job import stream_job
from flinkray.core.errors import JobSubmissionError
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph, SchedulerMode
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.graph.vertex_operator import VertexOperator


def program(
    mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING, scheduler: str = "default"
) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode).set_parallelism(2)
    numbers = env.from_sequence(1, 9).name("numbers").uid("n").map(lambda x: x).name("same")
    summed = numbers.key_by(lambda x: x).reduce(lambda x, y: x + y).name("sum").uid("s")
    summed.set_max_parallelism(16).set_uid_hash("ab" * 16).print().name("shown")
    settings = {"execution.checkpointing.interval": "2 s", "jobmanager.scheduler": scheduler}
    return stream_job(env.get_stream_graph(), configuration=settings)


def test_vertices_name_their_operators_the_head_first() -> None:
    source, keyed = program().vertices
    (first, second), (third, fourth) = source.operators, keyed.operators
    assert [o.name for o in source.operators] == ["numbers", "same"]
    assert [o.uid for o in (*source.operators, *keyed.operators)] == ["n", None, "s", None]
    assert third == VertexOperator("ab" * 16, "sum", "s", "ab" * 16)
    ids = {first.operator_id, second.operator_id, fourth.operator_id}
    assert len(ids) == 3
    assert program().vertices[0].operators == source.operators


def test_max_parallelism_is_the_vertex_s_where_somebody_has_set_it() -> None:
    """Otherwise it may become that of the state which the job begins with."""
    assert [vertex.max_parallelism for vertex in program().vertices] == [None, 16]


def test_streaming_jobs_take_checkpoints_and_batch_jobs_none() -> None:
    assert program().checkpoints == CheckpointConfiguration(interval=2.0)
    assert program(RuntimeExecutionMode.BATCH).checkpoints is None


def test_a_job_is_elastic_that_says_so() -> None:
    assert program().scheduler_mode is SchedulerMode.DEFAULT
    elastic = program(scheduler="Adaptive")
    assert elastic.scheduler_mode is SchedulerMode.ADAPTIVE
    with pytest.raises(JobSubmissionError, match="which is for streaming jobs"):
        program(RuntimeExecutionMode.BATCH, "adaptive")


def test_vertices_that_do_what_one_subtask_must_do_for_all_say_so() -> None:
    """Be it one operator of a chain."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection([1, 2, 3]).map(lambda x: x)
    keyed = numbers.key_by(lambda x: x).reduce(lambda x, y: x + y)
    keyed.count_window_all(2).reduce(lambda x, y: x + y).print()
    graph = stream_job(env.get_stream_graph())
    assert [vertex.non_parallel for vertex in graph.vertices] == [True, False, True]
    wider = replace(graph.vertices[0], parallelism=2)
    with pytest.raises(JobSubmissionError, match="its parallelism must be 1"):
        validate(replace(graph, vertices=(wider, *graph.vertices[1:])))
