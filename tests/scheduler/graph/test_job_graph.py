"""validate: what cannot run is refused with one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from flinkray.core.blobs import BlobKey
from flinkray.core.errors import JobSubmissionError
from flinkray.core.job_options import JOB_OPTIONS
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import schema_of, stored_fields
from flinkray.rpc.wire import codec
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    SPARK,
    SPARK_SESSION,
    STREAM,
    AttachedClient,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobFile,
    JobFileUse,
    JobGraph,
    JobType,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.reports.job_info import json_plan
from tests.scheduler.builders import GIB, JOB, LARGE, SMALL, VERTEX, spark_job, spark_vertex
from tests.scheduler.graphs import ALL_TO_ALL, data_set_id, job, python_vertex, vertex_id

IMPORT = JobFileUse.IMPORT
DATA_SET = IntermediateDataSet(data_set_id(1))
FILES = ResultMedium.FILES


def refusal(job_graph: JobGraph) -> str:
    with pytest.raises(JobSubmissionError) as caught:
        validate(job_graph)
    assert caught.value.job_id == JOB
    return caught.value.text


def test_job_with_one_or_more_equal_stages_is_accepted() -> None:
    validate(spark_job())
    validate(spark_job(spark_vertex(1), spark_vertex(2)))


def test_job_without_vertices_is_refused() -> None:
    assert "'a job' has no vertices" in refusal(JobGraph(JOB, "a job", ()))


def test_slot_without_cpu_is_accepted_only_for_a_spark_stage_in_a_shared_session() -> None:
    """Its executors are those of the session."""
    guest = Invokable(SPARK, b"", {SPARK_SESSION: "shared"})
    stage = replace(spark_vertex(profile=ResourceProfile(0, 1)), invokable=guest)
    validate(spark_job(stage))
    for invokable in (Invokable(SPARK, b""), Invokable(PYTHON, b"", guest.configuration)):
        assert "more than 0" in refusal(spark_job(replace(stage, invokable=invokable)))


def test_two_vertices_with_the_same_id_are_refused() -> None:
    text = refusal(spark_job(spark_vertex(1, name="one"), spark_vertex(1, name="two")))
    assert "'one' and 'two' have the same id" in text


def test_job_of_spark_stages_of_different_size_and_other_vertices_is_accepted() -> None:
    other = replace(python_vertex("a", 2), slot_profile=LARGE, slot_sharing_group="a")
    validate(spark_job(spark_vertex(1), spark_vertex(2, parallelism=3), other))


def test_spark_stage_whose_file_result_is_not_of_type_blocking_is_refused() -> None:
    result_type = ResultPartitionType.PIPELINED_BOUNDED
    result = IntermediateDataSet(data_set_id(1), result_type, ResultMedium.FILES)
    text = refusal(spark_job(replace(spark_vertex(), results=(result,))))
    assert "'stage' has a result of type PIPELINED_BOUNDED that is files" in text


def test_spark_stage_whose_result_is_not_in_files_is_refused() -> None:
    result = IntermediateDataSet(data_set_id(1), ResultPartitionType.BLOCKING)
    text = refusal(spark_job(replace(spark_vertex(), results=(result,))))
    assert "the Spark stage 'stage' has a result of medium CHANNELS" in text


def test_spark_stage_with_two_results_is_refused() -> None:
    results = tuple(
        IntermediateDataSet(data_set_id(n), ResultPartitionType.BLOCKING, ResultMedium.FILES)
        for n in (1, 2)
    )
    text = refusal(spark_job(replace(spark_vertex(), results=results)))
    assert "'stage' has 2 results, and its function returns one DataFrame" in text


def test_spark_stage_with_a_non_file_input_is_refused() -> None:
    graph = job(a=1, b=1, edges=["a -> b"], job_type=JobType.BATCH)
    a, b = graph.vertices
    stage = replace(b, invokable=Invokable(SPARK, b""))
    assert "the Spark stage 'b' reads a result of medium CHANNELS" in refusal(
        replace(graph, vertices=(a, stage))
    )


@pytest.mark.parametrize("stage", ["a", "b"])
def test_pointwise_edge_of_a_spark_stage_is_refused(stage: str) -> None:
    """The subtasks of a stage write and read together: a reader of some of them would read the
    rows of all."""
    graph = job(a=2, b=2, edges=["a ~~> b"])
    vertices = tuple(
        replace(v, invokable=Invokable(SPARK, b"")) if v.name == stage else v
        for v in graph.vertices
    )
    text = refusal(replace(graph, vertices=vertices))
    assert text.endswith("read and write all files together: make it ALL_TO_ALL")


def test_unproduced_data_set_does_not_hide_other_errors_of_a_vertex() -> None:
    graph = job(a=1, b=1, edges=["a => b"])
    a, b = graph.vertices
    inputs = (JobEdge(data_set_id(9), ALL_TO_ALL), *b.inputs)
    stage = replace(b, invokable=Invokable(SPARK, b""), inputs=inputs)
    assert "the Spark stage 'b' reads a result of medium CHANNELS" in refusal(
        replace(graph, vertices=(a, stage))
    )


def test_stream_operator_chain_that_reads_files_beside_channels_is_refused() -> None:
    graph = job(a=1, b=1, c=1, edges=["a => c", "b => c"], job_type=JobType.BATCH)
    *producers, c = graph.vertices
    a, b = (
        replace(it, results=tuple(replace(one, medium=ResultMedium.FILES) for one in it.results))
        for it in producers
    )
    chain = replace(c, invokable=Invokable(STREAM, b""))
    assert "'c' is a chain of stream operators and reads files beside channels" in refusal(
        replace(graph, vertices=(a, producers[1], chain))
    )
    validate(replace(graph, vertices=(a, b, chain)))


def test_unknown_kind_of_vertex_is_refused() -> None:
    vertex = JobVertex(VERTEX, "v", 1, SMALL, Invokable("magic", b""))
    assert "of kind 'magic', which this version cannot run" in refusal(spark_job(vertex))


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (job(a=1, b=1, edges=["a -> b", "b -> a"]), "the vertices 'a', 'b' read each other's"),
        (
            job(vertices=(python_vertex("a", inputs=(JobEdge(data_set_id(9), ALL_TO_ALL),)),)),
            f"vertex 'a' reads the data set {data_set_id(9)}, which no vertex of the job produces",
        ),
        (
            job(vertices=tuple(python_vertex(n, results=(DATA_SET,)) for n in "ab")),
            f"the data set {data_set_id(1)} is produced by 'b' and by 'a'",
        ),
        (job(a=1, b=1, edges=["a => b"], job_type=JobType.STREAMING), "has a blocking result"),
        (
            job(vertices=(python_vertex("a", 4, max_parallelism=3),)),
            "the parallelism of vertex 'a', 4, is higher than the max parallelism, 3",
        ),
        (job(a=32769), "32769, is higher than the max parallelism, 32768"),
        (job(vertices=(python_vertex("a", max_parallelism=40000),)), "from 1 to 32768"),
        (job(vertices=(python_vertex("a", 2, min_parallelism=3),)), "from 1 to the parallelism, 2"),
        (
            job(vertices=(python_vertex("a"), replace(python_vertex("b"), slot_profile=LARGE))),
            "give them the same slot profile or different slot-sharing groups",
        ),
        (
            job(
                vertices=[
                    python_vertex(n, p, co_location_group="g") for n, p in (("a", 1), ("b", 2))
                ]
            ),
            "give them the same slot-sharing group and the same parallelism",
        ),
        (
            replace(spark_job(), scheduler_mode=SchedulerMode.ADAPTIVE),
            "leave its scheduler mode at DEFAULT",
        ),
        (
            replace(job(a=1, b=1, edges=["a => b"]), scheduler_mode=SchedulerMode.ADAPTIVE),
            "leave its scheduler mode at DEFAULT",
        ),
    ],
)
def test_invalid_graph_is_refused_with_an_error_that_says_how_to_correct_it(
    graph: JobGraph, problem: str
) -> None:
    """EG-01, EG-02."""
    assert problem in refusal(graph)


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (job(a=1, b=0), "vertex 'b' has parallelism 0: it must be at least 1"),
        (job(a=1, b=-1), "vertex 'b' has parallelism -1: it must be at least 1"),
        (job(vertices=(python_vertex("a", max_parallelism=0),)), "has max parallelism 0"),
        (job(vertices=(python_vertex("a", max_parallelism=32769),)), "has max parallelism 32769"),
        (job(vertices=(python_vertex("a", min_parallelism=0),)), "has min parallelism 0"),
        (
            job(vertices=(replace(python_vertex("a"), slot_profile=ResourceProfile(0.0, GIB)),)),
            "vertex 'a' asks for 0 CPU per slot: it must be more than 0",
        ),
        (
            job(
                vertices=[
                    python_vertex(n, co_location_group="g", slot_sharing_group=n) for n in "ab"
                ]
            ),
            "the vertices 'a' and 'b' are in co-location group 'g'",
        ),
        (
            job(
                vertices=[
                    python_vertex("a"),
                    *(python_vertex(n, p, co_location_group="g") for n, p in (("b", 1), ("c", 2))),
                ]
            ),
            "the vertices 'b' and 'c' are in co-location group 'g'",
        ),
        (
            replace(job(a=1), configuration={"rest.port": "1"}),
            f"rest.port cannot be set for a job: those that can are {min(JOB_OPTIONS)}, ",
        ),
        (
            replace(job(a=1), configuration={"restart-strategy.type": "never, please"}),
            "restart-strategy.type",
        ),
        (
            job(
                vertices=(python_vertex("a", results=(DATA_SET, replace(DATA_SET, medium=FILES))),),
            ),
            f"the data set {data_set_id(1)} is produced by 'a' and by 'a'",
        ),
        (
            job(vertices=(python_vertex("a", results=(replace(DATA_SET, medium=FILES),)),)),
            "vertex 'a' has a result of type PIPELINED_BOUNDED that is files",
        ),
        (
            job(
                vertices=(
                    python_vertex(
                        "a",
                        results=(DATA_SET, IntermediateDataSet(data_set_id(2), medium=FILES)),
                    ),
                )
            ),
            "vertex 'a' has a result of type PIPELINED_BOUNDED that is files",
        ),
    ],
)
def test_job_graph_just_beyond_a_limit_is_refused(graph: JobGraph, problem: str) -> None:
    """EG-01, EG-02."""
    assert problem in refusal(graph)


@pytest.mark.parametrize(
    "graph",
    [
        job(a=1, b=1, edges=["a -> b"], job_type=JobType.STREAMING),
        replace(job(a=1, b=1, edges=["a -> b"]), scheduler_mode=SchedulerMode.ADAPTIVE),
        job(a=1, b=1, c=1, edges=["a => b", "a ==> b", "b ~> c", "a ~~> c"]),
        job(a=32768),
        job(vertices=(python_vertex("a", 3, min_parallelism=3, max_parallelism=3),)),
        job(vertices=(python_vertex("a", min_parallelism=1, max_parallelism=1),)),
        job(vertices=(python_vertex("a", max_parallelism=32768),)),
        job(vertices=(replace(python_vertex("a"), slot_profile=ResourceProfile(0.0)),)),
        job(vertices=(replace(python_vertex("a"), slot_profile=ResourceProfile(0.1)),)),
        job(vertices=(replace(python_vertex("a"), invokable=Invokable(STREAM, b"")),)),
        job(vertices=[python_vertex(n, 2, co_location_group="g") for n in "ab"]),
        job(vertices=[python_vertex(n, p, co_location_group=n) for n, p in (("a", 1), ("b", 2))]),
        job(vertices=(spark_vertex(1, 2, name="s"), python_vertex("b")), edges=["s ~> b"]),
        job(vertices=(spark_vertex(1, 2, name="s"), python_vertex("b")), edges=["b ~> s"]),
        job(
            vertices=(
                python_vertex("a"),
                python_vertex("b"),
                replace(python_vertex("c"), invokable=Invokable(STREAM, b"")),
            ),
            edges=["a => c", "b => c"],
        ),
        replace(job(a=1), configuration={"restart-strategy.type": "none"}),
    ],
)
def test_job_graph_just_within_a_limit_is_accepted(graph: JobGraph) -> None:
    """EG-01, EG-02."""
    validate(graph)


def test_job_graph_stored_by_an_earlier_version_gets_channel_results_and_no_options() -> None:
    """After an update a Dispatcher recovers the jobs of the version before."""
    data_set, graph = schema_of(IntermediateDataSet), schema_of(JobGraph)
    assert data_set is not None
    assert graph is not None
    before = {"data_set_id": data_set_id(1), "result_type": ResultPartitionType.BLOCKING}
    assert IntermediateDataSet(**data_set.migrations[1](before)) == IntermediateDataSet(
        data_set_id(1), ResultPartitionType.BLOCKING, ResultMedium.CHANNELS
    )
    vertices = (python_vertex("a"),)
    old = {"job_id": JOB, "name": "a job", "vertices": vertices}
    second = graph.migrations[1](old)
    assert JobGraph(**graph.migrations[2](second)) == JobGraph(JOB, "a job", vertices)


def test_job_of_a_graph_stored_by_an_earlier_version_takes_no_checkpoints() -> None:
    """The graph does not name its operators, so state could not be assigned."""
    graph, vertex = schema_of(JobGraph), schema_of(JobVertex)
    assert graph is not None
    assert vertex is not None
    a = python_vertex("a")
    old_vertex = {f: getattr(a, f) for f in stored_fields(JobVertex) if f != "operators"}
    assert JobVertex(**vertex.migrations[1](old_vertex)) == a
    old = {"job_id": JOB, "name": "a job", "vertices": (a,), "configuration": {}}
    assert JobGraph(**graph.migrations[2](old)).checkpoints is None


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (FixedDelayRestart, {"attempts": -1}),
        (FixedDelayRestart, {"attempts": 1, "delay": -0.1}),
        (FailureRateRestart, {"max_failures_per_interval": 0}),
        (FailureRateRestart, {"max_failures_per_interval": 1, "interval": 0.0}),
        (FailureRateRestart, {"max_failures_per_interval": 1, "delay": -0.1}),
        (ExponentialDelayRestart, {"initial_backoff": 0.0}),
        (ExponentialDelayRestart, {"initial_backoff": 2.0, "max_backoff": 1.9}),
        (ExponentialDelayRestart, {"backoff_multiplier": 0.9}),
        (ExponentialDelayRestart, {"jitter_factor": -0.1}),
        (ExponentialDelayRestart, {"jitter_factor": 1.1}),
        (ExponentialDelayRestart, {"reset_backoff_threshold": -0.1}),
        (ExponentialDelayRestart, {"attempts": -1}),
        (AttachedClient, {"name": "c", "heartbeat_timeout": 0.0, "reason": "r"}),
        (AttachedClient, {"name": "c", "heartbeat_timeout": float("nan"), "reason": "r"}),
    ],
)
def test_restart_strategy_and_client_numbers_out_of_range_are_refused(
    kind: Callable[..., object], arguments: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"must|please"):
        kind(**arguments)


def test_restart_strategy_and_client_numbers_at_the_limits_are_accepted() -> None:
    FixedDelayRestart(0, 0.0)
    FailureRateRestart(1, 0.1, 0.0)
    for jitter_factor in (0.0, 1.0):
        ExponentialDelayRestart(2.0, 2.0, 1.0, 0.0, jitter_factor, 0)
    AttachedClient("c", 0.1, "r")


def test_job_lists_blobs_of_its_code_and_files_once_each() -> None:
    first, second = BlobKey(b"1" * 32, 1), BlobKey(b"2" * 32, 2)
    vertices = [
        replace(python_vertex(name), invokable=Invokable(PYTHON, code))
        for name, code in (("a", b"code"), ("b", first), ("c", first))
    ]
    files = (JobFile("one", IMPORT, second), JobFile("two", IMPORT, b"content"))
    assert replace(job(vertices=vertices), files=files).blobs == (first, second)


def test_only_a_job_with_a_spark_stage_has_vertices_that_a_coordinator_runs() -> None:
    assert spark_job(spark_vertex(1), python_vertex("a")).has_coordinated_vertices
    assert not job(a=1).has_coordinated_vertices


def test_job_graph_is_equal_after_encoding_and_decoding() -> None:
    graph = job(a=2, b=3, edges=["a ==> b"])
    assert codec.decode(codec.encode(graph)) == graph


def test_json_plan_has_the_fields_of_flinks_plan() -> None:
    graph = job(a=2, b=3, edges=["a ==> b"])
    plan = json.loads(json_plan(graph))
    assert (plan["jid"], plan["name"], plan["type"]) == (JOB.hex(), "a job", "BATCH")
    assert plan["nodes"] == [
        {
            "id": vertex_id("a").hex(),
            "parallelism": 2,
            "operator": "",
            "operator_strategy": "",
            "description": "a",
            "optimizer_properties": {},
        },
        {
            "id": vertex_id("b").hex(),
            "parallelism": 3,
            "operator": "",
            "operator_strategy": "",
            "description": "b",
            "optimizer_properties": {},
            "inputs": [
                {
                    "num": 0,
                    "id": vertex_id("a").hex(),
                    "ship_strategy": "POINTWISE",
                    "exchange": "blocking",
                }
            ],
        },
    ]


def test_json_plan_names_the_ship_strategy_of_a_stream_edge() -> None:
    graph = job(a=1, b=1, edges=["a -> b"])
    edge = replace(graph.vertices[1].inputs[0], ship_strategy="HASH")
    reader = replace(graph.vertices[1], inputs=(edge,))
    plan = json.loads(json_plan(replace(graph, vertices=(graph.vertices[0], reader))))
    assert plan["nodes"][1]["inputs"][0]["ship_strategy"] == "HASH"
