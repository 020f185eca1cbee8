"""The plan of a chain: its operators and results, without the rest of the graph.

The plan is sent to the processes that run the chain's subtasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.graph import Chain, StreamEdge, StreamGraph, StreamNode
from flinkray.streaming.records.partitioners import StreamPartitioner
from flinkray.streaming.sinks.output_format import GlobalFormat, OutputFormatOperator, is_global


@dataclass(frozen=True)
class PlannedOutput:
    """Says where one output of an operator goes: to another operator of the same chain, or (as a
    result of the chain) to the tasks of another chain."""

    tag_id: str | None
    """Tag of the side output; None: the main output."""
    operator: int | None
    """Index of the receiving operator in the chain; None: the results leave the chain."""
    result: int | None
    """Index among the chain's results; None: the results go to an operator of the chain."""
    convert: Any = None
    """Converts values of a side output to the type of its tag; None: values stay as they are."""


@dataclass
class PlannedOperator:
    """One operator of a plan. Each subtask gets a copy of ``operator``."""

    operator_id: str
    name: str
    operator: StreamOperator
    max_parallelism: int
    keyed: bool
    convert: Any
    """Converts main results to the declared type; None: they stay as they are."""
    outputs: list[PlannedOutput] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedResult:
    """One result of a chain: records for the tasks of another chain, and how they are divided."""

    edge: int
    """Number of the edge in the graph."""
    partitioner: StreamPartitioner
    max_parallelism: int
    """Maximum parallelism of the consumer."""
    buffer_timeout: int | None
    """Milliseconds; meaning as in :class:`~flinkray.streaming.channels.RecordWriter`."""


@dataclass
class ChainPlan:
    """The plan of a chain: its operators and results. Every operator comes before the operators
    that it feeds, so the first operator of the chain is first."""

    name: str
    operators: list[PlannedOperator]
    results: list[PlannedResult]
    inputs: list[int]
    """For each edge into the head, the number of the head's input that the edge feeds."""
    auto_watermark_interval: int
    job_parameters: dict[str, str]
    cached_files: Mapping[str, str]
    """Path by name, on the client's machine; tasks on a cluster have their own paths."""
    object_reuse: bool = False
    """Whether operators of a task pass values on without copies."""
    state_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the state backend that the program sets. Other options are set by the process that
    runs the tasks."""

    @property
    def is_source(self) -> bool:
        """Whether the chain begins with a source and so reads from no other chain."""
        return isinstance(self.operators[0].operator, SourceOperator)


def global_formats(plan: ChainPlan) -> list[GlobalFormat]:
    """Return a new :class:`GlobalFormat` for each operator of the chain whose output format has
    methods to be called once for all subtasks."""
    return [
        GlobalFormat(planned.name, planned.operator.format, plan.job_parameters)
        for planned in plan.operators
        if isinstance(planned.operator, OutputFormatOperator) and is_global(planned.operator)
    ]


def edges_of(graph: StreamGraph) -> list[StreamEdge]:
    """Return all edges of the graph. The number of an edge is its index in this list."""
    return [edge for node in graph.nodes for edge in node.outputs]


def plan_chain(graph: StreamGraph, chain: Chain) -> ChainPlan:
    """Return the plan of one of the graph's chains.
    Results are in the order of :func:`ways_out`."""
    numbers = {id(edge): number for number, edge in enumerate(edges_of(graph))}
    operator_ids = graph.operator_ids()
    places = {node.id: place for place, node in enumerate(chain.nodes)}
    results = list(ways_out(graph, chain))
    result_places = {id(edge): place for place, edge in enumerate(results)}
    operators = [
        PlannedOperator(
            operator_ids[node.id],
            node.name,
            node.operator,
            node.max_parallelism,
            node.keyed,
            node.convert,
            [
                PlannedOutput(edge.output_tag, places[edge.target.id], None, edge.convert)
                if graph.is_chained(edge)
                else PlannedOutput(edge.output_tag, None, result_places[id(edge)], edge.convert)
                for edge in node.outputs
            ],
        )
        for node in chain.nodes
    ]
    return ChainPlan(
        chain.name,
        operators,
        [
            PlannedResult(
                numbers[id(edge)],
                edge.partitioner,
                edge.target.max_parallelism,
                edge.source.buffer_timeout,
            )
            for edge in results
        ],
        [edge.input_index for edge in chain.head.inputs],
        graph.auto_watermark_interval,
        dict(graph.job_parameters),
        dict(graph.cached_files),
        graph.object_reuse,
        dict(graph.state_options),
    )


def ways_out(graph: StreamGraph, chain: Chain) -> Iterator[StreamEdge]:
    nodes: Sequence[StreamNode] = chain.nodes
    return (edge for node in nodes for edge in node.outputs if not graph.is_chained(edge))
