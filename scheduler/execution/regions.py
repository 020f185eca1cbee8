"""Divides a graph into pipelined regions: vertices that must run at the same time and fail
together. Pipelined edges join vertices to a region; cyclic regions are merged (FO-01, FO-02)."""

from __future__ import annotations

from collections.abc import Iterator

from flinkray.scheduler.execution.execution_graph import ExecutionGraph, PartitionGroup


class PipelinedRegion:
    """The subtasks (execution vertices) of a region, and the groups of blocking partitions at its
    border."""

    __slots__ = ("index", "inputs", "outputs", "reads", "vertices")

    def __init__(self, index: int) -> None:
        self.index = index
        """Index of the region; regions are numbered in topological order."""
        self.vertices: list[int] = []
        """Ordinals of the region's vertices, ascending."""
        self.inputs: list[PartitionGroup] = []
        """Groups that the region reads from other regions."""
        self.outputs: list[PartitionGroup] = []
        """Groups of this region that other regions read."""
        self.reads: list[PartitionGroup] = []
        """All groups that the region reads: ``inputs`` and groups of its own."""


class PipelinedRegions:
    """All pipelined regions of a graph. If a region reads a group of partitions and produces some
    of them, it produces all of them, so it never waits for a part of a group. Time and space are
    proportional to vertices and groups."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self.of = _regions_of(graph)
        """Ordinal of a vertex -> index of its region."""
        self.regions = [PipelinedRegion(index) for index in range(max(self.of, default=-1) + 1)]
        """The regions in topological order."""
        for ordinal, index in enumerate(self.of):
            self.regions[index].vertices.append(ordinal)
        for group in blocking_groups(graph):
            for index in self.readers(group):
                self.regions[index].reads.append(group)
            consumers = self.consumers(group)
            for index in consumers:
                self.regions[index].inputs.append(group)
            if consumers:
                for index in self.producers(group):
                    self.regions[index].outputs.append(group)

    def producers(self, group: PartitionGroup) -> list[int]:
        """Return the indices of the regions that produce the group's partitions, without
        duplicates."""
        return _distinct(self.of, group.producer_ordinals)

    def readers(self, group: PartitionGroup) -> list[int]:
        """Return the indices of the regions that read the group, without duplicates."""
        return _distinct(self.of, group.consumer_ordinals)

    def consumers(self, group: PartitionGroup) -> list[int]:
        """Return the indices of the regions that read the group, without the regions that produce
        it."""
        producers = set(self.producers(group))
        return [index for index in self.readers(group) if index not in producers]


def _distinct(regions: list[int], ordinals: range) -> list[int]:
    return list(dict.fromkeys(regions[ordinals.start : ordinals.stop]))


def _regions_of(graph: ExecutionGraph) -> list[int]:
    """Return for each subtask, by ordinal, the number of its region. Regions are numbered in
    topological order."""
    joined = _join_pipelined(graph)
    while True:
        regions = _components_in_order(graph, joined)
        joined = _join_torn_groups(graph, regions)
        if joined == regions:
            return regions


def _join_torn_groups(graph: ExecutionGraph, regions: list[int]) -> list[int]:
    """Merge regions of which each produces a part of a partition group that one of them reads;
    otherwise that region would wait for itself. (Pointwise edges of uneven parallelism can cause
    this.)"""
    parent = list(range(max(regions, default=-1) + 1))

    def find(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    for group in blocking_groups(graph):
        if len(group.partitions) == 1:
            continue
        producers = set(_distinct(regions, group.producer_ordinals))
        readers = _distinct(regions, group.consumer_ordinals)
        if len(producers) > 1 and not producers.isdisjoint(readers):
            first, *others = sorted(find(index) for index in producers)
            for other in others:
                parent[other] = first
    return [find(region) for region in regions]


def blocking_groups(graph: ExecutionGraph) -> Iterator[PartitionGroup]:
    """Yield all partition groups of blocking results in the graph."""
    for edge in graph.edges:
        if not edge.result.is_pipelined:
            yield from edge.groups


def _join_pipelined(graph: ExecutionGraph) -> list[int]:
    """Join subtasks that pipelined edges connect (union-find). Returns for each ordinal the
    smallest ordinal of the subtasks that are joined with it."""
    parent = list(range(len(graph.subtasks)))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def join(ordinals: range, root: int) -> int:
        for ordinal in ordinals:
            other = find(ordinal)
            if other != root:
                if other < root:
                    other, root = root, other
                parent[other] = root
        return root

    for vertex in graph.vertices:
        if vertex.is_coordinated:  # its subtasks start and end together
            join(vertex.ordinals, find(vertex.first))
    for edge in graph.edges:
        if edge.result.is_pipelined:
            for group in edge.groups:
                root = join(group.producer_ordinals, find(group.producer_ordinals.start))
                join(group.consumer_ordinals, root)
    return [find(ordinal) for ordinal in range(len(parent))]


def _components_in_order(graph: ExecutionGraph, joined: list[int]) -> list[int]:
    """Number the regions in topological order, and merge cycles of regions into one. Returns for
    each ordinal the number of its region. Tarjan's algorithm runs over regions *and* partition
    groups as nodes, which takes n + m arcs per group instead of n x m."""
    number = {root: i for i, root in enumerate(dict.fromkeys(joined))}
    region_of = [number[root] for root in joined]
    groups = list(blocking_groups(graph))
    if not groups:
        return region_of
    first_group = len(number)
    successors: list[list[int]] = [[] for _ in range(first_group + len(groups))]
    for node, group in enumerate(groups, first_group):
        producers, consumers = group.producer_ordinals, group.consumer_ordinals
        for region in dict.fromkeys(region_of[producers.start : producers.stop]):
            successors[region].append(node)
        successors[node] = list(dict.fromkeys(region_of[consumers.start : consumers.stop]))
    component = _tarjan(successors)
    # Components come in reverse topological order; components that are only groups are left out.
    wanted = sorted({component[node] for node in range(first_group)}, reverse=True)
    order = {c: i for i, c in enumerate(wanted)}
    return [order[component[region]] for region in region_of]


def _tarjan(successors: list[list[int]]) -> list[int]:
    """Return the number of each node's strongly connected component; components are numbered in
    reverse topological order."""
    unseen = -1
    index = [unseen] * len(successors)
    low = [0] * len(successors)
    component = [unseen] * len(successors)
    stack: list[int] = []
    next_index = components = 0
    for start in reversed(range(len(successors))):
        if index[start] != unseen:
            continue
        index[start] = low[start] = next_index
        next_index += 1
        stack.append(start)
        path = [(start, reversed(successors[start]))]
        while path:
            node, remaining = path[-1]
            for successor in remaining:
                if index[successor] == unseen:
                    index[successor] = low[successor] = next_index
                    next_index += 1
                    stack.append(successor)
                    path.append((successor, reversed(successors[successor])))
                    break
                if component[successor] == unseen:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    low[before] = min(low[before], low[node])
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        component[member] = components
                        if member == node:
                            break
                    components += 1
    return component
