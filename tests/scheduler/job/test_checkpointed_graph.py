"""What checkpoints see of a job that streams and Spark share."""

from __future__ import annotations

import pytest

from flinkray.scheduler.checkpoints.plan import TasksMissingError, calculate_plan
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph
from tests.scheduler.builders import GRAPH, allocated_slot, spark_vertex
from tests.scheduler.graphs import job, stream_vertex


def job_with_a_spark_stage() -> JobGraph:
    streams = [stream_vertex("source", 2), stream_vertex("sink", 2)]
    return job(vertices=[spark_vertex(), *streams], edges=["source -> sink"])


def run(graph: ExecutionGraph, *names: str) -> None:
    for vertex in graph.vertices:
        if vertex.vertex.name in names:
            for execution in vertex.executions:
                execution.schedule(0.0)
                execution.deploy(allocated_slot(1), 0.0)
                execution.run(0.0)


def test_checkpoints_leave_out_spark_stages() -> None:
    graph = ExecutionGraph(job_with_a_spark_stage(), GRAPH, 0.0)
    run(graph, "source", "sink")

    plan = calculate_plan(CheckpointedGraph(graph, ()), allows_finished=True)

    assert [vertex.name for vertex in plan.vertices] == ["source", "sink"]
    assert {a.vertex.job_vertex_id for a in plan.to_trigger} == {plan.vertices[0].vertex_id}
    assert len(plan.running) == 4
    run(graph, spark_vertex().name)
    assert calculate_plan(CheckpointedGraph(graph, ()), allows_finished=True) == plan


def test_checkpoint_fails_while_a_streaming_task_beside_a_spark_stage_is_not_running() -> None:
    graph = ExecutionGraph(job_with_a_spark_stage(), GRAPH, 0.0)
    run(graph, "sink", spark_vertex().name)

    with pytest.raises(TasksMissingError, match="source"):
        calculate_plan(CheckpointedGraph(graph, ()), allows_finished=True)


def test_spark_stage_has_no_state_to_restore() -> None:
    graph = ExecutionGraph(job_with_a_spark_stage(), GRAPH, 0.0)
    restored = CheckpointedGraph(graph, ()).restored_vertices()
    assert [vertex.name for vertex in restored] == ["source", "sink"]
