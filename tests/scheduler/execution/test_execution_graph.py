"""From job graphs to execution graphs."""

from __future__ import annotations

import pytest

from flinkray.core.errors import IllegalTransitionError, JobSubmissionError
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.scheduler.execution.execution_graph import PRIOR_ATTEMPTS_KEPT, ExecutionGraph
from flinkray.scheduler.graph.job_graph import JobEdge
from tests.scheduler.builders import GRAPH, OTHER_GRAPH, spark_job, spark_vertex
from tests.scheduler.graphs import (
    ALL_TO_ALL,
    data_set_id,
    execution_graph,
    job,
    python_vertex,
    vertex_id,
)


def test_vertices_results_and_edges_are_built_in_topological_order() -> None:
    """EG-01."""
    graph = execution_graph(c=2, b=2, a=3, edges=["b --> c", "a -> b"])
    assert [v.vertex.name for v in graph.vertices] == ["a", "b", "c"]
    assert [v.first for v in graph.vertices] == [0, 3, 5]
    assert [s.task_name for s in graph.subtasks[3:5]] == ["b (1/2)", "b (2/2)"]
    b = graph.vertices[1]
    (edge,) = b.inputs
    assert edge.result is graph.vertices[0].results[0] is graph.result(data_set_id(2))
    assert edge.result.edges == [edge]
    assert graph.vertex(vertex_id("b")) is b


def test_vertex_whose_producer_is_not_attached_is_refused() -> None:
    """EG-01."""
    job_graph = job(a=1, b=1, edges=["a -> b"])
    graph = ExecutionGraph(job(z=1), GRAPH, 0.0)
    a, b = job_graph.vertices
    with pytest.raises(JobSubmissionError, match="whose producer is not attached yet"):
        graph.attach((b, a), 0.0)


def test_refused_vertex_leaves_no_edge_to_attached_vertices() -> None:
    """EG-01: the producer of the second of two inputs is missing."""
    graph = execution_graph(a=1, z=1, edges=["a -> z"])
    b = python_vertex(
        "b", inputs=(JobEdge(data_set_id(1), ALL_TO_ALL), JobEdge(data_set_id(9), ALL_TO_ALL))
    )
    with pytest.raises(JobSubmissionError, match="whose producer is not attached yet"):
        graph.attach((b,), 0.0)
    (edge,) = graph.edges
    assert edge.consumer.vertex.name == "z"
    result = graph.result(data_set_id(1))
    assert result is not None
    assert result.edges == [edge]


def test_attaching_a_vertex_twice_is_refused() -> None:
    """EG-01."""
    graph = execution_graph(a=1)
    with pytest.raises(JobSubmissionError, match="vertex 'a' is attached already"):
        graph.attach((python_vertex("a"),), 0.0)


def test_more_subtasks_than_the_max_parallelism_are_refused() -> None:
    """EG-02."""
    graph = execution_graph(z=1)
    with pytest.raises(JobSubmissionError, match=r"172, is higher than the max parallelism, 171"):
        graph.attach((python_vertex("a", 172, max_parallelism=171),), 0.0)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        *((1, 128), (85, 128), (86, 256), (170, 256), (171, 256), (172, 512), (341, 512)),
        *((342, 1024), (1000, 2048), (5461, 8192), (10922, 16384), (20000, 32768), (21845, 32768)),
        *((21846, 32768), (32768, 32768)),
    ],
)
def test_max_parallelism_is_derived_from_the_parallelism(parallelism: int, expected: int) -> None:
    """EG-03."""
    assert default_max_parallelism(parallelism) == expected


def test_configured_max_parallelism_is_used_in_place_of_the_derived_one() -> None:
    """EG-03."""
    vertices = (python_vertex("a", 4, max_parallelism=7), python_vertex("b", 4))
    graph = execution_graph(vertices=vertices)
    assert [v.max_parallelism for v in graph.vertices] == [7, 128]


def test_derived_max_parallelism_ignores_the_current_elastic_parallelism() -> None:
    """EG-03."""
    graph = ExecutionGraph(job(a=200), GRAPH, 0.0, parallelism={vertex_id("a"): 3}, first_attempt=5)
    assert (graph.vertices[0].parallelism, graph.vertices[0].max_parallelism) == (3, 512)
    assert {s.current.attempt_number for s in graph.subtasks} == {5}


def test_all_to_all_edge_has_one_group_of_all_producers_and_consumers() -> None:
    """EG-04."""
    graph = execution_graph(a=300, b=200, edges=["a -> b"])
    (group,) = graph.edges[0].groups
    assert (group.producer_ordinals, group.consumer_ordinals) == (range(300), range(300, 500))
    assert graph.edges[0].group_of_consumer(17) is group
    assert graph.edges[0].subpartition_of(17) == 17


def test_pointwise_edge_has_a_group_for_each_subtask_of_the_narrower_vertex() -> None:
    """EG-08."""
    edge = execution_graph(a=2, b=3, edges=["a --> b"]).edges[0]
    assert [(g.partitions, g.consumers) for g in edge.groups] == [
        (range(1), range(2)),
        (range(1, 2), range(2, 3)),
    ]
    assert [edge.group_of_consumer(i).index for i in range(3)] == [0, 0, 1]
    assert [edge.group_of_partition(i).index for i in range(2)] == [0, 1]


def test_finished_result_finishes_only_the_partition_group_of_the_edge_that_reads_it() -> None:
    graph = execution_graph(a=2, b=2, c=1, edges=["a => b", "a => c"])
    first, second = graph.vertices[0].results
    assert first.finish(0) == []
    assert first.finish(1) == [graph.edges[0].groups[0]]
    assert not graph.edges[1].groups[0].is_finished
    assert second.finish(0) == []


def test_partition_group_is_finished_until_one_of_its_partitions_is_reset() -> None:
    graph = execution_graph(a=2, b=2, edges=["a => b"])
    result, (group,) = graph.vertices[0].results[0], graph.edges[0].groups
    result.finish(0)
    result.finish(0)
    assert not group.is_finished
    assert result.finish(1) == [group]
    assert result.reset(1) == [group]
    assert (group.unfinished, group.version) == (1, 1)
    assert result.reset(0) == []
    assert group.unfinished == 2


def test_only_a_finished_partition_can_be_lost() -> None:
    result = execution_graph(a=1, b=1, edges=["a => b"]).vertices[0].results[0]
    assert not result.lose(0)
    assert result.is_available(0)
    result.finish(0)
    assert result.lose(0)
    assert not result.is_available(0)
    assert not result.lose(0)
    result.reset(0)
    assert result.is_available(0)


def test_each_spark_stage_has_an_edge_from_the_previous_one() -> None:
    graph = ExecutionGraph(spark_job(spark_vertex(1), spark_vertex(2), spark_vertex(3)), GRAPH, 0.0)
    assert [(e.result.producer.index, e.consumer.index) for e in graph.edges] == [(0, 1), (1, 2)]
    assert [e.result.data_set_id for e in graph.edges] == [None, None]


def test_number_of_prior_attempts_remembered_per_subtask_is_bounded() -> None:
    subtask = execution_graph(a=1).subtasks[0]
    for now in range(30):
        subtask.current.begin_cancel(now)
        subtask.reset_for_new_execution(now)
    assert subtask.current.attempt_number == 30
    assert [e.attempt_number for e in subtask.prior] == list(range(30 - PRIOR_ATTEMPTS_KEPT, 30))


def test_execution_vertex_is_terminal_exactly_while_all_its_subtasks_have_ended() -> None:
    """EG-11."""
    graph = execution_graph(a=2)
    vertex = graph.vertices[0]
    for subtask in graph.subtasks:
        assert not vertex.is_terminal
        subtask.current.begin_cancel(1.0)
    assert vertex.is_terminal
    assert not graph.is_finished
    graph.subtasks[0].reset_for_new_execution(2.0)
    assert not vertex.is_terminal
    with pytest.raises(IllegalTransitionError):
        graph.subtasks[0].reset_for_new_execution(3.0)


def test_attempt_of_another_graph_of_the_job_is_not_found() -> None:
    """EX-11: two JobMasters of a job number its vertices, subtasks and attempts in the same way."""
    graph = ExecutionGraph(job(a=1), GRAPH, 0.0)
    of_another = ExecutionGraph(job(a=1), OTHER_GRAPH, 0.0).subtasks[0].current.attempt_id
    assert graph.find(of_another) is None
    current = graph.subtasks[0].current
    assert graph.find(current.attempt_id) is current
