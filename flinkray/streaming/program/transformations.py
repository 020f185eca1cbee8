"""The transformations that the API creates, and their translation into a stream graph.

Unions, partitionings and side outputs are no operators; they become properties of edges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from flinkray.core.resources import ResourceProfile
from flinkray.state.backends import IN_MEMORY
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.batch_mode import BroadcastFirstOperator, SortedInputsOperator
from flinkray.streaming.operators.operator import ChainingStrategy, StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.program.graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    StreamEdge,
    StreamGraph,
    StreamNode,
    max_parallelism_of,
    operator_id_of,
)
from flinkray.streaming.records.key_sorter import DEFAULT_MEMORY
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.partitioners import (
    ForwardPartitioner,
    RebalancePartitioner,
    StreamPartitioner,
)
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.sink_operators import CommitterOperator, SinkWriterOperator


@dataclass(eq=False)
class Transformation:
    """Base class of all transformations: the steps of a program, which put out records."""

    name: str
    type_info: Any = None


@dataclass(eq=False)
class OperatorTransformation(Transformation):
    """A step of a program with an operator. If several transformations are given for one input,
    their union is its input."""

    operator: StreamOperator = field(kw_only=True)
    inputs: list[Transformation] = field(default_factory=list)
    kind: str = "Operator"
    keyed: bool = False
    parallelism: int = 1
    max_parallelism: int | None = None
    non_parallel: bool = False
    """Whether the parallelism is 1 and cannot be changed."""
    chaining: ChainingStrategy | None = None
    slot_sharing_group: str | None = None
    slot_profile: ResourceProfile | None = None
    """Resources of the group's slots; None: the operator's group was given by name."""
    uid: str | None = None
    uid_hash: str | None = None
    description: str = ""
    convert: Any = None
    buffer_timeout: int | None = None
    batch_operator: StreamOperator | None = None
    """The operator that replaces ``operator`` in batch mode; None: ``operator`` is used."""
    local_operator: StreamOperator | None = None
    """Operator that aggregates before the exchange by key, in batch mode; None: no such operator.
    It has no state and does not appear in the user's program."""
    is_local_in_streams: bool = False
    """Whether streaming mode uses ``local_operator``, too, if either side has several subtasks."""
    sort_keys: tuple[Keys | None, ...] | None = None
    """The keys of the inputs, by which batch mode sorts; None: batch mode does not sort."""
    broadcast_first: bool = False
    """Whether batch mode reads the second input before the first."""


@dataclass(eq=False)
class UnionTransformation(Transformation):
    """Puts out the records of all its inputs in one stream."""

    inputs: list[Transformation] = field(default_factory=list)


@dataclass(eq=False)
class PartitionTransformation(Transformation):
    """Passes on the records of its input, to the subtasks that *partitioner* chooses."""

    input: Transformation = field(kw_only=True)
    partitioner: StreamPartitioner = field(kw_only=True)


@dataclass(eq=False)
class SideOutputTransformation(Transformation):
    """Puts out the records that the operator *input* sends to a side output."""

    input: Transformation = field(kw_only=True)
    tag_id: str = field(kw_only=True)


@dataclass(frozen=True)
class _Upstream:
    """The origin of an input's records: an operator (*node*), one of its outputs (*tag_id* None:
    the main output), and the partitioner between this output and the input."""

    node: StreamNode
    partitioner: StreamPartitioner | None = None
    tag_id: str | None = None
    convert: Any = None
    """Converts values of a side output to the type of its tag; None: values stay as they are."""


@dataclass
class GraphSettings:
    """Settings of the whole program."""

    job_name: str = "Flink Streaming Job"
    max_parallelism: int | None = None
    chaining_enabled: bool = True
    auto_watermark_interval: int = 200
    object_reuse: bool = False
    state_options: dict[str, str] = field(default_factory=dict)
    buffer_timeout: int | None = 100
    batch: bool = False
    auto_generated_uids: bool = True
    """False: an operator without uid is refused."""
    sort_memory: int = DEFAULT_MEMORY
    takes_checkpoints: bool = True
    """Whether checkpoints are taken, at least when tasks cannot end without one. Then sinks commit
    with checkpoints; otherwise they commit when all their results are written."""
    job_parameters: dict[str, str] = field(default_factory=dict)
    cached_files: dict[str, str] = field(default_factory=dict)


def build_graph(transformations: Iterable[Transformation], settings: GraphSettings) -> StreamGraph:
    """Return the graph of all *transformations* and of the transformations that they read from.
    Raises StreamError if parallelisms, partitionings or groups do not fit, or a uid is missing."""
    graph = StreamGraph(
        settings.job_name,
        chaining_enabled=settings.chaining_enabled,
        auto_watermark_interval=settings.auto_watermark_interval,
        object_reuse=settings.object_reuse,
        # Sorted inputs have state of one key only: it is never large.
        state_options=dict(IN_MEMORY if settings.batch else settings.state_options),
        job_parameters=dict(settings.job_parameters),
        cached_files=dict(settings.cached_files),
        batch=settings.batch,
    )
    builder = _Builder(graph, settings)
    for transformation in transformations:
        builder.upstreams(transformation)
    graph.operator_ids()
    _check_alignment(graph)
    return graph


def _check_alignment(graph: StreamGraph) -> None:
    for chain in graph.chains():
        for node in chain.nodes:
            operator = node.operator
            aligned = isinstance(operator, TimestampsAndWatermarksOperator) and operator.is_aligned
            if aligned and not isinstance(chain.head.operator, SourceOperator):
                raise StreamError(
                    f"{node.name!r} cannot make its source wait, because it does not run in the "
                    "source's task: give the strategy with watermark alignment to from_source"
                )


class _Builder:
    def __init__(self, graph: StreamGraph, settings: GraphSettings) -> None:
        self._graph = graph
        self._settings = settings
        self._done: dict[int, list[_Upstream]] = {}
        self._keep: list[Transformation] = []

    def upstreams(self, transformation: Transformation) -> list[_Upstream]:
        known = self._done.get(id(transformation))
        if known is None:
            known = self._translate(transformation)
            self._done[id(transformation)] = known
            self._keep.append(transformation)
        return known

    def _translate(self, transformation: Transformation) -> list[_Upstream]:
        if isinstance(transformation, OperatorTransformation):
            return [_Upstream(self._operator(transformation))]
        if isinstance(transformation, UnionTransformation):
            return [up for part in transformation.inputs for up in self.upstreams(part)]
        if isinstance(transformation, PartitionTransformation):
            return [
                replace(up, partitioner=transformation.partitioner)
                for up in self.upstreams(transformation.input)
            ]
        if isinstance(transformation, SideOutputTransformation):
            kind = transformation.type_info
            convert = kind.converter() if isinstance(kind, TypeInformation) else None
            return [
                _Upstream(up.node, None, transformation.tag_id, convert)
                for up in self.upstreams(transformation.input)
            ]
        raise TypeError(f"unknown transformation {transformation!r}")

    def _operator(self, transformation: OperatorTransformation) -> StreamNode:
        inputs = [self.upstreams(part) for part in transformation.inputs]
        settings = self._settings
        if not settings.auto_generated_uids and not (transformation.uid or transformation.uid_hash):
            raise StreamError(
                f"{transformation.name} has no uid, and disable_auto_generated_uids was called: "
                "give each operator one with uid(...)"
            )
        parallelism = 1 if transformation.non_parallel else transformation.parallelism
        if transformation.local_operator is not None:
            inputs = [
                [self._behind_local(transformation, up, parallelism) for up in upstreams]
                for upstreams in inputs
            ]
        wanted = transformation.max_parallelism or settings.max_parallelism
        max_parallelism = max_parallelism_of(parallelism, wanted)
        if parallelism > max_parallelism:
            raise StreamError(
                f"{transformation.name}: parallelism {parallelism} is greater than its max "
                f"parallelism {max_parallelism}"
            )
        operator = transformation.operator
        if settings.batch and transformation.batch_operator is not None:
            operator = transformation.batch_operator
        elif settings.batch and transformation.sort_keys is not None:
            operator = SortedInputsOperator(
                operator, transformation.sort_keys, settings.sort_memory
            )
        elif settings.batch and transformation.broadcast_first:
            operator = BroadcastFirstOperator(operator, settings.sort_memory)
        node = StreamNode(
            id=len(self._graph.nodes) + 1,
            name=transformation.name,
            operator=operator,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            kind=transformation.kind,
            keyed=transformation.keyed,
            chaining=transformation.chaining or type(transformation.operator).chaining,
            slot_sharing_group=self._slot_sharing_group(transformation, inputs),
            uid=transformation.uid,
            uid_hash=transformation.uid_hash,
            description=transformation.description,
            convert=transformation.convert,
            buffer_timeout=(
                settings.buffer_timeout
                if transformation.buffer_timeout is None
                else transformation.buffer_timeout
            ),
            has_own_max_parallelism=wanted is not None,
            non_parallel=transformation.non_parallel,
        )
        self._graph.nodes.append(node)
        if transformation.slot_profile is not None:
            self._graph.set_slot_profile(node.slot_sharing_group, transformation.slot_profile)
        for index, upstreams in enumerate(inputs):
            for upstream in upstreams:
                self._graph.connect(self._edge(upstream, node, index))
        if isinstance(operator, SinkWriterOperator) and operator.sink.has_committer:
            self._add_committer(node, operator)
        return node

    def _add_committer(self, writer: StreamNode, operator: SinkWriterOperator) -> None:
        with_checkpoints = self._settings.takes_checkpoints
        writer.operator = copy.copy(operator)
        writer.operator.prepares_with_checkpoints = with_checkpoints
        is_single = operator.sink.commits_in_order or not with_checkpoints
        name = f"{writer.name.removesuffix(': Writer')}: Committer"
        node = StreamNode(
            id=len(self._graph.nodes) + 1,
            name=name,
            operator=CommitterOperator(operator.sink, at_end=not with_checkpoints),
            parallelism=1 if is_single else writer.parallelism,
            max_parallelism=writer.max_parallelism,
            kind=writer.kind,
            slot_sharing_group=writer.slot_sharing_group,
            uid=None if writer.uid is None else f"Sink Committer: {writer.uid}",
            uid_hash=(
                None
                if writer.uid_hash is None
                else operator_id_of(f"Sink Committer: {writer.uid_hash}")
            ),
            buffer_timeout=writer.buffer_timeout,
            has_own_max_parallelism=writer.has_own_max_parallelism,
            non_parallel=is_single or writer.non_parallel,
        )
        self._graph.nodes.append(node)
        self._graph.connect(self._edge(_Upstream(writer), node, 0))

    def _behind_local(
        self, transformation: OperatorTransformation, upstream: _Upstream, parallelism: int
    ) -> _Upstream:
        assert transformation.local_operator is not None
        source = upstream.node
        is_divided = source.parallelism > 1 or parallelism > 1
        if not (self._settings.batch or (transformation.is_local_in_streams and is_divided)):
            return upstream
        node = StreamNode(
            id=len(self._graph.nodes) + 1,
            name=f"Local {transformation.name}",
            operator=transformation.local_operator,
            parallelism=source.parallelism,
            max_parallelism=source.max_parallelism,
            slot_sharing_group=source.slot_sharing_group,
            buffer_timeout=source.buffer_timeout,
            has_own_max_parallelism=source.has_own_max_parallelism,
            is_local=True,
        )
        self._graph.nodes.append(node)
        here = replace(upstream, partitioner=ForwardPartitioner())
        self._graph.connect(self._edge(here, node, 0))
        return _Upstream(node, upstream.partitioner)

    @staticmethod
    def _slot_sharing_group(
        transformation: OperatorTransformation, inputs: list[list[_Upstream]]
    ) -> str:
        if transformation.slot_sharing_group is not None:
            return transformation.slot_sharing_group
        groups = {up.node.slot_sharing_group for upstreams in inputs for up in upstreams}
        return groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP

    @staticmethod
    def _edge(upstream: _Upstream, target: StreamNode, index: int) -> StreamEdge:
        source = upstream.node
        partitioner = copy.copy(upstream.partitioner)
        if partitioner is None:
            same = source.parallelism == target.parallelism
            partitioner = ForwardPartitioner() if same else RebalancePartitioner()
        elif isinstance(partitioner, ForwardPartitioner) and (
            source.parallelism != target.parallelism
        ):
            raise StreamError(
                f"forward from {source.name} (parallelism {source.parallelism}) to {target.name} "
                f"(parallelism {target.parallelism}) needs equal parallelism: use rebalance()"
            )
        return StreamEdge(source, target, index, partitioner, upstream.tag_id, upstream.convert)
