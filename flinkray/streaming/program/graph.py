"""The graph of a stream program: nodes with operators, edges with partitioners."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flinkray.core.errors import ConfigurationError
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.core.resources import ResourceProfile
from flinkray.streaming.operators.operator import ChainingStrategy, StreamOperator
from flinkray.streaming.records.partitioners import ForwardPartitioner, StreamPartitioner

DEFAULT_SLOT_SHARING_GROUP = "default"


def _digest(what: str, inputs: Iterable[str]) -> str:
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    for each in inputs:
        digest.update(each.encode())
    return digest.hexdigest()


def operator_id_of(uid: str) -> str:
    """Return the operator id for a uid: 32 hexadecimal digits under which state is kept."""
    return hashlib.blake2b(b"uid:" + uid.encode(), digest_size=16).hexdigest()


@dataclass
class StreamEdge:
    """An edge of a stream graph, over which one node sends records to another."""

    source: StreamNode
    target: StreamNode
    input_index: int
    partitioner: StreamPartitioner
    output_tag: str | None = None
    """Tag of the side output that the edge carries; None: the main output."""
    convert: Any = None
    """Converts values of a side output to the type of its tag; None: values stay as they are."""


@dataclass
class StreamNode:
    """An operator that *parallelism* subtasks run. Each subtask gets a copy of ``operator``."""

    id: int
    name: str
    operator: StreamOperator
    parallelism: int
    max_parallelism: int
    kind: str = "Operator"
    """The kind in the execution plan: Data Source, Operator or Data Sink."""
    keyed: bool = False
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP
    uid: str | None = None
    uid_hash: str | None = None
    description: str = ""
    convert: Any = None
    """Converts results to the declared type; None: they stay as they are."""
    buffer_timeout: int | None = None
    has_own_max_parallelism: bool = False
    """Whether the max parallelism was set. Otherwise it follows from the parallelism."""
    non_parallel: bool = False
    """Whether one subtask must do the work of all: the parallelism is 1."""
    is_local: bool = False
    """Whether the node does a part of the next node's work before the exchange by key, if the mode
    (batch or streaming) allows it. It has no state, and the ids of other nodes ignore it."""
    inputs: list[StreamEdge] = field(default_factory=list)
    outputs: list[StreamEdge] = field(default_factory=list)


@dataclass
class StreamGraph:
    """The graph of a whole program: its nodes, each after the nodes that it reads from."""

    job_name: str
    nodes: list[StreamNode] = field(default_factory=list)
    chaining_enabled: bool = True
    auto_watermark_interval: int = 200
    object_reuse: bool = False
    """Whether operators of a task pass values on without copies."""
    state_options: dict[str, str] = field(default_factory=dict)
    """Options of the backend for keyed state that the program sets."""
    job_parameters: dict[str, str] = field(default_factory=dict)
    cached_files: dict[str, str] = field(default_factory=dict)
    batch: bool = False
    """Whether all input is bounded, and only results of the whole input are wanted."""
    slot_profiles: dict[str, ResourceProfile] = field(default_factory=dict)
    """Resources of a slot, by slot-sharing group; groups without an entry take any slot."""

    def set_slot_profile(self, group: str, profile: ResourceProfile) -> None:
        """Set the resources of the slots of *group*. Raises ConfigurationError: the program gives
        the group other resources elsewhere."""
        before = self.slot_profiles.setdefault(group, profile)
        if before != profile:
            raise ConfigurationError(
                f"slot-sharing group {group!r} is given {before} and {profile}: use one "
                "SlotSharingGroup, or different names"
            )

    def connect(self, edge: StreamEdge) -> None:
        edge.source.outputs.append(edge)
        edge.target.inputs.append(edge)

    def upstream_of(self, node: StreamNode) -> list[StreamNode]:
        """Return all nodes whose records reach *node*, the nearest first."""
        found: dict[int, StreamNode] = {}
        waiting = [node]
        while waiting:
            for edge in waiting.pop(0).inputs:
                if edge.source.id not in found:
                    found[edge.source.id] = edge.source
                    waiting.append(edge.source)
        return list(found.values())

    def chains(self) -> list[Chain]:
        """Return the chains of operators that run together, upstream first.
        Each becomes a job vertex."""
        heads = [node for node in self.nodes if not self._chained_input(node)]
        chains = [Chain(head, list(self._members(head))) for head in heads]
        hashes = self._hashes()
        for chain in chains:
            chain.vertex_id = hashes[chain.head.id]
        return chains

    def _members(self, node: StreamNode) -> Iterator[StreamNode]:
        yield node
        for edge in node.outputs:
            if self.is_chained(edge):
                yield from self._members(edge.target)

    def _chained_input(self, node: StreamNode) -> bool:
        return any(self.is_chained(edge) for edge in node.inputs)

    def is_chained(self, edge: StreamEdge) -> bool:
        """Return whether the edge is inside a chain. Flink's rules: one input, forward, same
        parallelism and slot-sharing group, and neither side forbids chaining."""
        source, target = edge.source, edge.target
        return (
            self.chaining_enabled
            and len(target.inputs) == 1
            and isinstance(edge.partitioner, ForwardPartitioner)
            and source.parallelism == target.parallelism
            and source.slot_sharing_group == target.slot_sharing_group
            and source.chaining is not ChainingStrategy.NEVER
            and target.chaining is ChainingStrategy.ALWAYS
        )

    def _hashes(self) -> dict[int, str]:
        """Return an id for each node, from its uid or its position in the graph.
        The id does not change when the same program is built again."""
        hashes: dict[int, str] = {}
        seen_by_others: dict[int, str] = {}
        place = -1
        for node in self.nodes:
            inputs = [seen_by_others[edge.source.id] for edge in node.inputs]
            if node.is_local:
                (seen_by_others[node.id],) = inputs
                hashes[node.id] = _digest(f"local:{len(hashes)}", inputs)
                continue
            place += 1
            if node.uid_hash is not None:
                own = node.uid_hash
            elif node.uid is not None:
                own = operator_id_of(node.uid)
            else:
                own = _digest(f"node:{place}", inputs)
            hashes[node.id] = seen_by_others[node.id] = own
        return hashes

    def operator_ids(self) -> dict[int, str]:
        """Return the 32 hexadecimal digits under which a node's state is kept, by node id.
        Raises ConfigurationError if two nodes have the same uid."""
        hashes = self._hashes()
        seen: dict[str, StreamNode] = {}
        for node in self.nodes:
            other = seen.setdefault(hashes[node.id], node)
            if other is not node:
                raise ConfigurationError(
                    f"{other.name!r} and {node.name!r} have the same uid {node.uid!r}: "
                    "uids must be unique in a job"
                )
        return hashes

    def execution_plan(self) -> str:
        """Return the plan as JSON, in the form of Flink's ``getExecutionPlan``."""
        nodes = []
        for node in self.nodes:
            entry: dict[str, Any] = {
                "id": node.id,
                "type": node.name,
                "pact": node.kind,
                "contents": node.description or node.name,
                "parallelism": node.parallelism,
            }
            if node.inputs:
                entry["predecessors"] = [
                    {
                        "id": edge.source.id,
                        "ship_strategy": edge.partitioner.name,
                        "side": "second",
                    }
                    for edge in node.inputs
                ]
            nodes.append(entry)
        return json.dumps({"nodes": nodes}, indent=2)


@dataclass
class Chain:
    """Operators that run together: each task of the chain runs a copy of all of them."""

    head: StreamNode
    nodes: list[StreamNode]
    vertex_id: str = ""

    @property
    def name(self) -> str:
        """The chain's name in Flink's form: ``Source: numbers -> Map -> (Filter, Sink: print)``."""
        return _chain_name(self.head, {node.id for node in self.nodes})

    @property
    def parallelism(self) -> int:
        return self.head.parallelism


def _chain_name(node: StreamNode, members: set[int]) -> str:
    following = [
        _chain_name(edge.target, members)
        for edge in node.outputs
        if edge.target.id in members and len(edge.target.inputs) == 1
    ]
    if not following:
        return node.name
    if len(following) == 1:
        return f"{node.name} -> {following[0]}"
    return f"{node.name} -> ({', '.join(following)})"


def max_parallelism_of(parallelism: int, wanted: int | None) -> int:
    """Return the number of key groups of a node: *wanted*, or the default if *wanted* is None."""
    return default_max_parallelism(parallelism) if wanted is None else wanted
