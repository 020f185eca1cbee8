"""What the subtasks of a chain are made of: its operators and its ways out, and nothing of the
rest of the graph.  That is what travels to the processes that run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.graph import Chain, StreamEdge, StreamGraph, StreamNode
from flinkray.streaming.records.partitioners import StreamPartitioner


@dataclass(frozen=True)
class PlannedOutput:
    """Where results of an operator go: to another operator of the chain, or out of it."""

    tag_id: str | None
    """Of the side output; None: the main one."""
    operator: int | None
    """Place in the chain."""
    result: int | None
    """Place among the chain's results."""
    convert: Any = None
    """Of a side output: turns its values into those of the tag's type; None: they are taken as they
    are."""


@dataclass
class PlannedOperator:
    """One operator; ``operator`` is the one that each subtask gets a copy of."""

    operator_id: str
    name: str
    operator: StreamOperator
    max_parallelism: int
    keyed: bool
    convert: Any
    """Turns main results into values of the declared type; None: they are taken as they are."""
    outputs: list[PlannedOutput] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedResult:
    """A way out of the chain, to the tasks of another one."""

    edge: int
    """Number of the edge in the graph."""
    partitioner: StreamPartitioner
    max_parallelism: int
    """The consumer's."""
    buffer_timeout: int | None
    """Milliseconds; see :class:`~flinkray.streaming.channels.RecordWriter`."""


@dataclass
class ChainPlan:
    """The head comes first, and every operator before those that it feeds."""

    name: str
    operators: list[PlannedOperator]
    results: list[PlannedResult]
    inputs: list[int]
    """For each edge into the head, the head's input that it feeds."""
    auto_watermark_interval: int
    job_parameters: dict[str, str]
    cached_files: Mapping[str, str]
    """Paths by name, here: of the client; tasks on a cluster have their own."""
    object_reuse: bool = False
    """Operators of a task hand values on as they are."""
    state_options: Mapping[str, str] = field(default_factory=dict)
    """Of the backend that keeps keyed state, as the program sets them; the process that runs the
    tasks has its own for the rest."""

    @property
    def is_source(self) -> bool:
        """Whether it reads splits, and no other chain."""
        return isinstance(self.operators[0].operator, SourceOperator)


def edges_of(graph: StreamGraph) -> list[StreamEdge]:
    """All edges; an edge's number is its place here."""
    return [edge for node in graph.nodes for edge in node.outputs]


def plan_chain(graph: StreamGraph, chain: Chain) -> ChainPlan:
    """The plan of one of the graph's chains.  Results are in the order of :func:`ways_out`."""
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
    """The edges that leave the chain."""
    nodes: Sequence[StreamNode] = chain.nodes
    return (edge for node in nodes for edge in node.outputs if not graph.is_chained(edge))
