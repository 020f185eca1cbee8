"""What stream tasks have read and written, in the details of their job."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import ResourceID
from flinkray.scheduler.graph.job_graph import STREAM, FixedDelayRestart, Invokable, JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.reports.job_info import VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics, total
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest

READ = IOMetrics(10, None, 640, None, 5, 0, 95)
MORE = IOMetrics(32, None, 2048, None, 25, 0, 75)


def streams(graph: JobGraph) -> JobGraph:
    """With stream tasks in place of Python tasks."""
    vertices = (replace(v, invokable=Invokable(STREAM, b"chain")) for v in graph.vertices)
    return replace(graph, vertices=tuple(vertices))


def vertex_of(tasks: TasksUnderTest) -> VertexInfo:
    (vertex,) = tasks.scheduler.details().vertices
    return vertex


def metrics_of(vertex: VertexInfo) -> list[IOMetrics | None]:
    return [execution.io_metrics for execution in vertex.executions]


def test_total_of_io_metrics_leaves_out_figures_that_no_task_has_measured() -> None:
    writes = IOMetrics(None, 7, None, 70, 1, 2, 3)
    assert total([READ, MORE]) == IOMetrics(42, None, 2688, None, 30, 0, 170)
    assert total([READ, writes]) == IOMetrics(10, 7, 640, 70, 6, 2, 98)
    assert total([]) is None


def test_vertex_watermark_is_the_earliest_known_one() -> None:
    found = total([READ, *(replace(READ, input_watermark=at) for at in (7, -3, 12))])
    assert found is not None
    assert found.input_watermark == -3


def test_ended_tasks_keep_the_metrics_of_their_last_report() -> None:
    tasks = TasksUnderTest(streams(job(a=3))).run()
    assert metrics_of(vertex_of(tasks)) == [None, None, None]

    tasks.report("a1", ExecutionState.FINISHED, io_metrics=READ)
    tasks.tell(t.CancelJob())
    tasks.report("a2", ExecutionState.CANCELED, io_metrics=MORE)

    vertex = vertex_of(tasks)
    assert metrics_of(vertex) == [READ, MORE, None]
    assert (vertex.io_metrics, vertex.measured) == (total([READ, MORE]), 2)


def test_restarted_task_has_no_metrics_yet_and_the_failed_attempt_keeps_its_metrics() -> None:
    graph = replace(streams(job(a=1)), restart_strategy=FixedDelayRestart(9, 1.0))
    tasks = TasksUnderTest(graph).run()
    tasks.fail("a1", io_metrics=READ)
    tasks.restart()

    vertex = vertex_of(tasks)
    assert metrics_of(vertex) == [None]
    assert (vertex.io_metrics, vertex.measured) == (None, 0)
    assert [execution.io_metrics for execution in vertex.prior_executions] == [READ]


def test_running_tasks_show_current_metrics_and_ended_tasks_show_their_last() -> None:
    tasks = TasksUnderTest(streams(job(a=2))).run()
    tasks.report("a1", ExecutionState.FINISHED, io_metrics=MORE)
    running = {tasks.attempt("a1"): READ, tasks.attempt("a2"): READ}

    (vertex,) = tasks.scheduler.details(running).vertices

    assert metrics_of(vertex) == [MORE, READ]


def test_metrics_are_fetched_only_from_task_executors_with_running_stream_tasks() -> None:
    assert TasksUnderTest(job(a=2)).run().scheduler.places_of_streams() == ()

    tasks = TasksUnderTest(streams(job(a=2)))
    assert tasks.scheduler.places_of_streams() == (), "nothing is deployed"
    tasks.run()
    assert tasks.scheduler.places_of_streams() == (ResourceID("te0"), ResourceID("te1"))
    tasks.finish("a1")
    assert tasks.scheduler.places_of_streams() == (tasks.where[tasks.attempt("a2")],)


def test_vertex_without_listed_executions_keeps_its_metrics_total() -> None:
    tasks = TasksUnderTest(streams(job(a=1))).run()
    tasks.report("a1", ExecutionState.FINISHED, io_metrics=READ)
    (vertex,) = tasks.scheduler.details().without_executions().vertices
    assert (vertex.executions, vertex.io_metrics) == ((), READ)
