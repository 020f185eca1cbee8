"""topological_order: each vertex after all that it reads, otherwise as the user has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import JobSubmissionError
from flinkray.scheduler.graph.job_graph import JobEdge, JobGraph
from flinkray.scheduler.graph.validation import topological_order
from tests.scheduler.builders import JOB
from tests.scheduler.graphs import ALL_TO_ALL, data_set_id, job, python_vertex


def names(graph: JobGraph) -> list[str]:
    return [vertex.name for vertex in topological_order(graph)]


def refusal(graph: JobGraph) -> str:
    with pytest.raises(JobSubmissionError) as caught:
        topological_order(graph)
    assert caught.value.job_id == JOB
    return caught.value.text


def test_unconnected_vertices_keep_their_order() -> None:
    assert names(job(c=1, a=1, b=1)) == ["c", "a", "b"]


def test_topological_order_puts_vertices_after_their_inputs() -> None:
    """EG-01."""
    edges = ["a -> b", "a -> c", "b -> d", "c -> d"]
    assert names(job(d=1, c=1, b=1, a=1, edges=edges)) == ["a", "c", "b", "d"]
    assert names(job(d=1, a=1, e=1, b=1, c=1, edges=edges)) == ["a", "e", "b", "c", "d"]


def test_vertex_with_two_inputs_from_one_producer_is_ordered_once() -> None:
    graph = job(b=1, a=1, edges=["a -> b", "a => b"])
    assert names(graph) == ["a", "b"]
    b, a = graph.vertices
    assert names(replace(graph, vertices=(replace(b, inputs=b.inputs[:1] * 2), a))) == ["a", "b"]


def test_circular_graph_is_refused_naming_the_vertices_in_and_behind_the_circle() -> None:
    """EG-01."""
    text = refusal(
        job(a=1, b=1, c=1, d=1, e=1, edges=["a -> b", "b -> c", "c -> b", "c -> d", "a -> e"])
    )
    assert text.startswith("the vertices 'b', 'c', 'd' read each other's results in a circle")
    assert "'a' read each other's" in refusal(job(a=1, edges=["a -> a"]))


def test_reading_a_data_set_that_no_vertex_produces_is_refused() -> None:
    """EG-02."""
    reader = python_vertex("a", inputs=(JobEdge(data_set_id(9), ALL_TO_ALL),))
    assert refusal(job(vertices=(reader,))).startswith(
        f"vertex 'a' reads the data set {data_set_id(9)}, which no vertex of the job produces"
    )
