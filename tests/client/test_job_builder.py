"""Jobs that the client builds from Spark functions and stream programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.client.stream_job import stream_job
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, FlinkRayError, JobSubmissionError
from flinkray.core.ids import ExecutionGraphID, JobID
from flinkray.core.job_options import CHECKPOINTING_DIR, SAVEPOINT_DIR
from flinkray.core.resources import ResourceProfile
from flinkray.datastream import (
    CoMapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    FixedDelayRestart,
    JobGraph,
    SchedulerMode,
    VertexOperator,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph
from flinkray.user_code import UserCodeError, load_function


def pipeline(spark: Any) -> Any:
    return spark


def test_job_has_one_spark_vertex_with_a_slot_profile_and_the_function() -> None:
    job = flinkray.spark_job(
        pipeline,
        parallelism=3,
        cpu=2,
        memory="1.5g",
        spark_conf={"spark.sql.shuffle.partitions": 8, "spark.ui.enabled": False},
        restart_strategy=FixedDelayRestart(2),
    )
    (vertex,) = job.vertices
    assert (job.name, vertex.name, vertex.parallelism) == ("pipeline", "pipeline", 3)
    assert vertex.slot_profile == ResourceProfile(2, 3 * 2**29)
    assert vertex.invokable.kind == SPARK
    assert vertex.invokable.configuration == {
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
    }
    code = vertex.invokable.code
    assert isinstance(code, bytes)
    assert load_function(code)("a session") == "a session"
    assert job.restart_strategy == FixedDelayRestart(2)
    assert job.has_coordinated_vertices


def test_spark_job_has_the_given_name_and_id_or_a_new_id() -> None:
    job_id = JobID(b"a job of a test.")
    job = flinkray.spark_job(pipeline, name="flights of 2013", job_id=job_id)
    assert (job.job_id, job.name) == (job_id, "flights of 2013")
    assert flinkray.spark_job(pipeline).job_id != flinkray.spark_job(pipeline).job_id


@pytest.mark.parametrize(
    ("arguments", "error_type", "text"),
    [
        ({"parallelism": 0}, JobSubmissionError, "parallelism"),
        ({"parallelism": -1}, JobSubmissionError, "parallelism"),
        ({"memory": "1 parsec"}, ConfigurationError, "1 parsec"),
        ({"memory": None}, ConfigurationError, "memory=None"),
        ({"cpu": -1}, ConfigurationError, "cpu=-1"),
        ({"cpu": float("inf")}, ConfigurationError, "cpu must be a number from 0 to 1000000"),
        ({"cpu": 0}, JobSubmissionError, "CPU"),
        ({"memory": "500m"}, ConfigurationError, "must be at least 682.7m|at least 68"),
        ({"spark_conf": {"spark.executor.cores": 2}}, ConfigurationError, "spark.executor.cores"),
        ({"spark_conf": {"executor.cores": 2}}, ConfigurationError, "is no Spark property"),
        (
            {"memory": "1g", "spark_conf": {"spark.executor.memoryOverhead": "700m"}},
            ConfigurationError,
            "too small for a Spark executor",
        ),
    ],
)
def test_spark_job_refuses_invalid_arguments_with_an_error_that_names_them(
    arguments: dict[str, Any], error_type: type[FlinkRayError], text: str
) -> None:
    with pytest.raises(error_type, match=text):
        flinkray.spark_job(pipeline, **arguments)


def test_spark_job_refuses_a_pipeline_that_is_no_function() -> None:
    with pytest.raises(UserCodeError, match="'SELECT 1'"):
        flinkray.spark_job("SELECT 1")  # type: ignore[arg-type]


def test_public_names_of_flinkray_exist_and_are_listed_by_dir() -> None:
    for name in flinkray.__all__:
        assert getattr(flinkray, name) is not None
        assert name in dir(flinkray)
    with pytest.raises(AttributeError, match="no_such_name"):
        flinkray.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def program(
    mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING,
    scheduler: str = "default",
    others: Mapping[str, str] | None = None,
) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode).set_parallelism(2)
    numbers = env.from_sequence(1, 9).name("numbers").uid("n").map(lambda x: x).name("same")
    summed = numbers.key_by(lambda x: x).reduce(lambda x, y: x + y).name("sum").uid("s")
    summed.set_max_parallelism(16).set_uid_hash("ab" * 16).print().name("shown")
    settings = {"execution.checkpointing.interval": "2 s", "jobmanager.scheduler": scheduler}
    settings |= others or {}
    return stream_job(env.get_stream_graph(), configuration=settings)


def test_vertex_lists_its_operators_beginning_with_the_head() -> None:
    source, keyed = program().vertices
    (first, second), (third, fourth) = source.operators, keyed.operators
    assert [o.name for o in source.operators] == ["numbers", "same"]
    assert [o.uid for o in (*source.operators, *keyed.operators)] == ["n", None, "s", None]
    assert third == VertexOperator("ab" * 16, "sum", "s", "ab" * 16)
    ids = {first.operator_id, second.operator_id, fourth.operator_id}
    assert len(ids) == 3
    assert program().vertices[0].operators == source.operators


def test_vertex_has_a_max_parallelism_only_if_the_program_sets_one() -> None:
    """Otherwise the job may take the max parallelism of the state that it starts from."""
    assert [vertex.max_parallelism for vertex in program().vertices] == [None, 16]


def test_streaming_jobs_take_checkpoints_and_batch_jobs_none() -> None:
    assert program().checkpoints == CheckpointConfiguration(interval=2.0)
    assert program(RuntimeExecutionMode.BATCH).checkpoints is None


def test_relative_checkpoint_directory_of_a_program_becomes_absolute_in_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of the cluster have other working directories than the program."""
    monkeypatch.chdir(tmp_path)
    job = program(others={CHECKPOINTING_DIR.key: "kept", SAVEPOINT_DIR.key: "file:///savepoints"})
    read = ReadableConfig(job.configuration)
    assert read.get(CHECKPOINTING_DIR) == str(tmp_path / "kept")
    assert read.get(SAVEPOINT_DIR) == "/savepoints"
    with pytest.raises(ConfigurationError, match="neither a path nor a URI"):
        program(others={CHECKPOINTING_DIR.key: "s3://[bucket"})


def test_streaming_job_with_the_adaptive_scheduler_is_elastic() -> None:
    assert program().scheduler_mode is SchedulerMode.DEFAULT
    elastic = program(scheduler="Adaptive")
    assert elastic.scheduler_mode is SchedulerMode.ADAPTIVE
    with pytest.raises(JobSubmissionError, match="which is for streaming jobs"):
        program(RuntimeExecutionMode.BATCH, "adaptive")


def test_vertex_with_a_non_parallel_operator_must_have_parallelism_1() -> None:
    """One non-parallel operator in a chain is enough."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection([1, 2, 3]).map(lambda x: x)
    keyed = numbers.key_by(lambda x: x).reduce(lambda x, y: x + y)
    keyed.count_window_all(2).reduce(lambda x, y: x + y).print()
    graph = stream_job(env.get_stream_graph())
    assert [vertex.non_parallel for vertex in graph.vertices] == [True, False, True]
    wider = replace(graph.vertices[0], parallelism=2)
    with pytest.raises(JobSubmissionError, match="its parallelism must be 1"):
        validate(replace(graph, vertices=(wider, *graph.vertices[1:])))


LATE: OutputTag[int] = OutputTag("late")


def edges_of(*branches: str) -> list[CheckpointedEdge]:
    """Return the edges, as checkpoints know them, of a program in which each branch reads the
    end of one chain. Operators have names in place of ids."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    split = env.from_sequence(1, 9).name("source").map(lambda x: x).process(_Silent())
    split.name("split")
    for name in branches:
        late = split.get_side_output(LATE) if name == "late" else split
        late.key_by(lambda x: x).reduce(lambda x, y: x + y).name(name).print().name("sink")
    graph = stream_job(env.get_stream_graph())
    names = {o.operator_id: o.name for vertex in graph.vertices for o in vertex.operators}
    vertices = CheckpointedGraph(ExecutionGraph(graph, ExecutionGraphID.generate(), 0), ()).vertices
    return [
        replace(
            edge,
            writer=names[edge.writer],
            reader=names[edge.reader],
            operator_id=names[edge.operator_id],
        )
        for vertex in vertices
        for edge in vertex.edges
    ]


def test_checkpoint_identifies_edges_by_their_operators_and_numbers() -> None:
    """SA-12: a new branch in front of another branch changes the number of the other branch's
    result."""
    slow = CheckpointedEdge("source", 0, "slow", 0, "split", None, 0, "HASH")
    late = replace(slow, result=1, reader="late", output_tag="late")
    assert edges_of("slow", "late") == [slow, late]
    assert edges_of("new", "slow") == [replace(slow, reader="new"), replace(slow, result=1)]


def test_checkpoint_records_the_operator_input_that_each_edge_feeds() -> None:
    """SA-12"""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    one, other = env.from_sequence(1, 9), env.from_sequence(1, 9)
    both = other.union(env.from_sequence(1, 9))
    one.connect(both).map(_Same()).print()
    graph = stream_job(env.get_stream_graph())
    vertices = CheckpointedGraph(ExecutionGraph(graph, ExecutionGraphID.generate(), 0), ()).vertices
    edges = [edge for vertex in vertices for edge in vertex.edges]
    assert [(edge.gate, edge.input_index) for edge in edges] == [(0, 0), (1, 1), (2, 1)]
    assert [edge.writer for edge in edges] == [v.operators[0].operator_id for v in vertices[:3]]


class _Silent(ProcessFunction[Any, Any]):
    def process_element(self, value: int, ctx: Any) -> None:
        pass


class _Same(CoMapFunction[Any, Any, Any]):
    def map1(self, value: int) -> int:
        return value

    def map2(self, value: int) -> int:
        return value
