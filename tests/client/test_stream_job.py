"""What a stream program becomes as a job."""

from __future__ import annotations

from flinkray.client.stream_job import stream_job
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.graph.vertex_operator import VertexOperator


def program(mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode).set_parallelism(2)
    numbers = env.from_sequence(1, 9).name("numbers").uid("n").map(lambda x: x).name("same")
    summed = numbers.key_by(lambda x: x).reduce(lambda x, y: x + y).name("sum").uid("s")
    summed.set_max_parallelism(16).set_uid_hash("ab" * 16).print().name("shown")
    settings = {"execution.checkpointing.interval": "2 s"}
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
