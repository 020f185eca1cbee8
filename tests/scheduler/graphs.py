"""Job graphs in a line each: ``job(a=2, b=3, edges=["a -> b", "a => c"])``.

``->`` is all-to-all and ``-->`` pointwise, both pipelined; ``=>`` and ``==>`` the same, blocking;
``~>`` and ``~~>`` the same, files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flinkray.core.ids import IntermediateDataSetID, JobVertexID
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    SPARK,
    STREAM,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    RestartStrategy,
    ResultMedium,
    ResultPartitionType,
    VertexOperator,
)
from tests.scheduler.builders import GRAPH, JOB, NO_RESTART, SMALL, id_of

ALL_TO_ALL = DistributionPattern.ALL_TO_ALL
POINTWISE = DistributionPattern.POINTWISE

_CHANNELS, _FILES = ResultMedium.CHANNELS, ResultMedium.FILES
_ARROWS = {
    "->": (ALL_TO_ALL, ResultPartitionType.PIPELINED_BOUNDED, _CHANNELS),
    "-->": (POINTWISE, ResultPartitionType.PIPELINED_BOUNDED, _CHANNELS),
    "=>": (ALL_TO_ALL, ResultPartitionType.BLOCKING, _CHANNELS),
    "==>": (POINTWISE, ResultPartitionType.BLOCKING, _CHANNELS),
    "~>": (ALL_TO_ALL, ResultPartitionType.BLOCKING, _FILES),
    "~~>": (POINTWISE, ResultPartitionType.BLOCKING, _FILES),
}


def vertex_id(name: str) -> JobVertexID:
    return id_of(JobVertexID, int.from_bytes(name.encode(), "big"))


def data_set_id(number: int) -> IntermediateDataSetID:
    return id_of(IntermediateDataSetID, number)


def python_vertex(name: str, parallelism: int = 1, **more: Any) -> JobVertex:
    invokable = Invokable(PYTHON, name.encode())
    return JobVertex(vertex_id(name), name, parallelism, SMALL, invokable, **more)


def stream_vertex(name: str, parallelism: int = 1, **more: Any) -> JobVertex:
    """With one operator, whose id is the vertex's name."""
    invokable = more.pop("invokable", Invokable(STREAM, name.encode()))
    operators = (VertexOperator(name, name),)
    more = {"operators": operators, **more}
    return JobVertex(vertex_id(name), name, parallelism, SMALL, invokable, **more)


def job(
    *,
    edges: Iterable[str] = (),
    restart_strategy: RestartStrategy | None = NO_RESTART,
    job_type: JobType | None = None,
    vertices: Iterable[JobVertex] = (),
    **parallelism: int,
) -> JobGraph:
    """One data set per edge, numbered from 1, but one for all edges of a Spark stage; a batch job
    when any edge is blocking."""
    by_name = {v.name: v for v in vertices}
    by_name |= {name: python_vertex(name, number) for name, number in parallelism.items()}
    is_batch = False
    for number, edge in enumerate(edges, 1):
        source, arrow, target = edge.split()
        pattern, result_type, medium = _ARROWS[arrow]
        is_batch |= not result_type.is_pipelined
        results = by_name[source].results
        if not results or by_name[source].invokable.kind != SPARK:
            data_set = IntermediateDataSet(data_set_id(number), result_type, medium)
            results = (*results, data_set)
        inputs = (*by_name[target].inputs, JobEdge(results[-1].data_set_id, pattern))
        by_name[source] = replace(by_name[source], results=results)
        by_name[target] = replace(by_name[target], inputs=inputs)
    return JobGraph(
        JOB,
        "a job",
        tuple(by_name.values()),
        restart_strategy,
        job_type or (JobType.BATCH if is_batch else JobType.STREAMING),
    )


def execution_graph(**arguments: Any) -> ExecutionGraph:
    return ExecutionGraph(job(**arguments), GRAPH, 0.0)
