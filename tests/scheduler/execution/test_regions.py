"""Pipelined regions, and which of them a failure restarts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.job.failover import (
    FailoverStrategy,
    RestartAllFailoverStrategy,
    RestartPipelinedRegionFailoverStrategy,
)
from tests.scheduler.builders import GRAPH, spark_job, spark_vertex
from tests.scheduler.graphs import execution_graph, job


def names(graph: ExecutionGraph, ordinals: Iterable[int]) -> str:
    """``a1 b2``: subtasks counted from 1."""
    return " ".join(
        f"{graph.subtasks[o].job_vertex.vertex.name}{graph.subtasks[o].subtask_index + 1}"
        for o in ordinals
    )


def regions_of(**arguments: Any) -> list[str]:
    graph = execution_graph(**arguments)
    return [names(graph, region.vertices) for region in PipelinedRegions(graph).regions]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 3}, ["a1", "a2", "a3"]),
        ({"a": 3, "b": 3, "edges": ["a --> b"]}, ["a1 b1", "a2 b2", "a3 b3"]),
        ({"a": 2, "b": 2, "edges": ["a -> b"]}, ["a1 a2 b1 b2"]),
        ({"a": 1, "b": 2, "edges": ["a ==> b"]}, ["a1", "b2", "b1"]),
        ({"a": 2, "b": 2, "c": 2, "edges": ["a --> b", "b => c"]}, ["a1 b1", "a2 b2", "c2", "c1"]),
        (
            {"a": 2, "b": 2, "c": 2, "edges": ["a => b", "b --> c"]},
            ["a1", "a2", "b1 c1", "b2 c2"],
        ),
        ({"a": 4, "b": 2, "edges": ["a --> b"]}, ["a1 a2 b1", "a3 a4 b2"]),
    ],
)
def test_pipelined_edges_join_regions_and_blocking_edges_separate_regions(
    arguments: dict[str, Any], expected: list[str]
) -> None:
    """FO-01."""
    assert sorted(regions_of(**arguments)) == sorted(expected)


def test_partition_read_by_its_own_and_another_region_is_an_input_of_the_other_only() -> None:
    """FO-01."""
    graph = execution_graph(a=2, b=3, c=2, edges=["a ==> b", "a --> c", "b --> c"])
    regions = PipelinedRegions(graph)
    assert [names(graph, r.vertices) for r in regions.regions] == ["a1 b1 c1", "a2 b2 b3 c2"]
    first, second = regions.regions
    (of_a1, of_a2) = graph.edges[0].groups
    assert (first.inputs, first.outputs, first.reads) == ([], [of_a1], [of_a1])
    assert (second.inputs, second.outputs, second.reads) == ([of_a1], [], [of_a1, of_a2])


def test_region_reading_a_partition_group_it_partly_produces_includes_all_producers() -> None:
    """FO-02."""
    # b2 reads a2 and a3; with a3 it is joined by pipelines, with a2 it is not
    assert regions_of(a=3, b=2, c=3, edges=["a ==> b", "a --> c", "b --> c"]) == [
        "a1 a2 a3 b1 b2 c1 c2 c3"
    ]


def test_spark_stage_is_a_region_and_the_next_stage_comes_after_it() -> None:
    graph = ExecutionGraph(spark_job(spark_vertex(1), spark_vertex(2)), GRAPH, 0.0)
    regions = PipelinedRegions(graph).regions
    assert [r.vertices for r in regions] == [[0, 1], [2, 3]]
    assert regions[0].outputs == regions[1].inputs == graph.edges[0].groups


def test_regions_of_a_graph_400_vertices_deep_are_found() -> None:
    names_ = [f"v{i}" for i in range(400)]
    edges = [f"{a} => {b}" for a, b in pairwise(names_)]
    found = regions_of(**dict.fromkeys(names_, 3), edges=edges)
    assert len(found) == 1200


# --- failover -------------------------------------------------------------------------------------


class Failing:
    """A graph all of whose vertices are scheduled (CREATED ones are not restarted)."""

    def __init__(self, kind: type[FailoverStrategy] | None = None, **arguments: Any) -> None:
        self.graph = ExecutionGraph(job(**arguments), GRAPH, 0.0)
        for subtask in self.graph.subtasks:
            subtask.current.schedule(1.0)
        regions = PipelinedRegions(self.graph)
        self.strategy = (kind or RestartPipelinedRegionFailoverStrategy)(self.graph, regions)

    def finish(self, *vertices: str) -> Failing:
        for name in vertices:
            vertex, subtask = self._of(name)
            for result in vertex.job_vertex.results:
                result.finish(subtask)
        return self

    def lose(self, *vertices: str) -> Failing:
        """The partitions of these subtasks are gone."""
        for name in vertices:
            vertex, subtask = self._of(name)
            for result in vertex.job_vertex.results:
                result.lose(subtask)
        return self

    def restarted(self, *vertices: str) -> str:
        failed = [self._of(name)[0].ordinal for name in vertices]
        return names(self.graph, self.strategy.tasks_to_restart(failed))

    def _of(self, name: str) -> tuple[Any, int]:
        subtask = int(name[-1]) - 1
        for vertex in self.graph.vertices:
            if vertex.vertex.name == name[:-1]:
                return vertex.subtasks[subtask], subtask
        raise KeyError(name)


# Flink's picture of v1 .. v6: three regions, {v1 v2} -> {v3} -> ..., as a, b, c below
CHAIN: dict[str, Any] = {"a": 1, "b": 1, "c": 1, "d": 1, "edges": ["a => b", "b => c", "b => d"]}


def test_task_failure_restarts_its_region_and_those_downstream_but_none_upstream() -> None:
    """FO-03."""
    failing = Failing(**CHAIN).finish("a1", "b1")
    assert failing.restarted("b1") == "b1 c1 d1"
    assert failing.restarted("a1") == "a1 b1 c1 d1"
    assert failing.restarted("d1") == "d1"


def test_failure_does_not_restart_vertices_that_never_started() -> None:
    """FO-06."""
    failing = Failing(a=1, b=2, edges=["a => b"])
    subtask = failing.graph.subtasks[1]
    subtask.current.begin_cancel(2.0)
    subtask.reset_for_new_execution(3.0)
    assert failing.restarted("a1") == "a1 b2"


def test_strategy_restart_all_restarts_every_vertex_after_a_failure() -> None:
    """FO-07."""
    failing = Failing(RestartAllFailoverStrategy, a=2, b=1)
    assert failing.restarted("a1") == "a1 a2 b1"


@st.composite
def random_jobs(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 5))
    arguments: dict[str, Any] = {f"v{i}": draw(st.integers(1, 4)) for i in range(number)}
    edges = []
    for target in range(1, number):
        for source in draw(st.sets(st.integers(0, target - 1), max_size=2)):
            arrow = draw(st.sampled_from(["->", "-->", "=>", "==>"]))
            edges.append(f"v{source} {arrow} v{target}")
    return {**arguments, "edges": edges}


def pairs_of(graph: ExecutionGraph, pipelined: bool) -> dict[int, set[int]]:
    """Producer -> consumers, vertex by vertex: what groups stand for."""
    found: dict[int, set[int]] = defaultdict(set)
    for edge in graph.edges:
        if edge.result.is_pipelined is pipelined:
            for subtask in range(edge.consumer.parallelism):
                for producer in edge.group_of_consumer(subtask).producer_ordinals:
                    found[producer].add(edge.consumer.first + subtask)
    return found


@given(random_jobs())
def test_pipelined_regions_of_random_graphs_are_closed_ordered_and_minimal(
    arguments: dict[str, Any],
) -> None:
    """FO-01, FO-02."""
    graph = execution_graph(**arguments)
    regions = PipelinedRegions(graph)
    assert sorted(o for r in regions.regions for o in r.vertices) == list(
        range(len(graph.subtasks))
    )
    for producer, consumers in pairs_of(graph, pipelined=True).items():
        assert all(regions.of[c] == regions.of[producer] for c in consumers)
    for producer, consumers in pairs_of(graph, pipelined=False).items():
        assert all(regions.of[c] >= regions.of[producer] for c in consumers)
    # reachability by brute force: two vertices are in one region only if each reaches the other,
    # where pipelined edges can be gone both ways
    arcs: dict[int, set[int]] = defaultdict(set)
    for producer, consumers in pairs_of(graph, pipelined=True).items():
        for consumer in consumers:
            arcs[producer].add(consumer)
            arcs[consumer].add(producer)
    for producer, consumers in pairs_of(graph, pipelined=False).items():
        arcs[producer] |= consumers
    # and those that produce a group of which the reader's region produces a part
    while True:
        reached = {o: _reach(arcs, o) for o in range(len(graph.subtasks))}
        torn = [
            (group, consumer)
            for edge in graph.edges
            if not edge.result.is_pipelined
            for group in edge.groups
            for consumer in group.consumer_ordinals
            if 0
            < sum(p in reached[consumer] for p in group.producer_ordinals)
            < len(group.producer_ordinals)
        ]
        if not torn:
            break
        for group, consumer in torn:
            arcs[consumer] |= set(group.producer_ordinals)
    for one in reached:
        for other in reached:
            together = other in reached[one] and one in reached[other]
            assert together == (regions.of[one] == regions.of[other])


def _reach(arcs: dict[int, set[int]], start: int) -> set[int]:
    seen, queue = {start}, [start]
    while queue:
        for other in arcs[queue.pop()] - seen:
            seen.add(other)
            queue.append(other)
    return seen


@given(random_jobs(), st.data())
def test_restarted_tasks_of_random_graphs_are_those_of_a_naive_evaluator(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    """FO-03, FO-04, FO-05."""
    failing = Failing(**arguments)
    graph = failing.graph
    size = len(graph.subtasks)
    gone = data.draw(st.sets(st.integers(0, size - 1)))
    for ordinal in sorted(gone):
        vertex = graph.subtasks[ordinal]
        for result in vertex.job_vertex.results:
            result.finish(vertex.subtask_index)
            result.lose(vertex.subtask_index)
    failed = data.draw(st.integers(0, size - 1))
    regions = PipelinedRegions(graph)
    expected = {regions.of[failed]}
    blocking = pairs_of(graph, pipelined=False)
    while True:
        more = set()
        for producer, consumers in blocking.items():
            for consumer in consumers:
                if regions.of[producer] in expected:
                    more.add(regions.of[consumer])
                if regions.of[consumer] in expected and producer in gone:
                    more.add(regions.of[producer])
        if more <= expected:
            break
        expected |= more
    assert failing.strategy.tasks_to_restart([failed]) == [
        o for o in range(size) if regions.of[o] in expected
    ]
