"""Blocking partitions: where they are, and when nobody needs them any more (EX-14)."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import ResourceID, ResultPartitionID
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionVertex,
    IntermediateResult,
)
from flinkray.scheduler.execution.regions import PipelinedRegions, blocking_groups
from flinkray.scheduler.shared.slots import WorkerLocation

PlacedPartition = tuple[WorkerLocation, ResultPartitionID]
"""A partition, and where it is."""


class PartitionTracker:
    """Knows the finished blocking partitions that TaskExecutors keep, and which of them can be
    released, because every region that reads them is finished.

    Persistent ones are kept until the job ends; if it finishes, they are the cluster's (TM-28).
    Stored ones are not kept by TaskExecutors, and stay until the job ends.

    A region that is restarted reads its inputs again: those that were released by then are gone,
    and the same failover has them produced again.
    """

    def __init__(self, graph: ExecutionGraph, regions: PipelinedRegions) -> None:
        self._graph = graph
        self._regions = regions
        self._tracked: dict[ResourceID, dict[int, None]] = {}
        """TaskExecutor -> ordinals of the finished subtasks whose partitions are there."""
        for group in blocking_groups(graph):
            group.readers = len(regions.readers(group))

    def finished(self, vertex: ExecutionVertex) -> None:
        """A subtask has finished; its blocking partitions stay where it ran."""
        execution = vertex.current
        if execution.slot is not None and _blocking_results(vertex):
            where = execution.slot.location.resource_id
            self._tracked.setdefault(where, {})[vertex.ordinal] = None

    def disown(self, execution: Execution) -> list[PlacedPartition]:
        """An attempt counts as ended otherwise than by finishing, and may have finished or may do
        so yet: what it leaves is nobody's, and is to be released."""
        if execution.slot is None:
            return []
        vertex = execution.vertex
        partitions = []
        for result in _blocking_results(vertex):
            assert result.data_set_id is not None
            partition = ResultPartitionID(
                self._graph.graph_id,
                result.data_set_id,
                vertex.subtask_index,
                execution.attempt_number,
            )
            partitions.append((execution.slot.location, partition))
        return partitions

    def region_finished(self, index: int) -> list[PlacedPartition]:
        """All of a region is finished: what only it still had to read is to be released."""
        released: list[PlacedPartition] = []
        for group in self._regions.regions[index].reads:
            group.readers -= 1
            if group.readers:
                continue
            result = group.edge.result
            if result.result_type.is_persistent or result.is_stored:
                continue
            for partition in group.partitions:
                if not any(e.group_of_partition(partition).readers for e in result.edges):
                    released += self._hand_over(result, partition)
        return released

    def region_unfinished(self, index: int) -> None:
        """A finished region is going to run again."""
        for group in self._regions.regions[index].reads:
            group.readers += 1

    def reset(self, vertex: ExecutionVertex) -> list[PlacedPartition]:
        """The subtask is going to be executed again: what it produced is of no use and is to be
        released."""
        released: list[PlacedPartition] = []
        for result in _blocking_results(vertex):
            released += self._hand_over(result, vertex.subtask_index)
        self._untrack(vertex)
        return released

    def task_executor_lost(self, resource_id: ResourceID) -> list[ExecutionVertex]:
        """Its partitions are lost; the producers of those that a region still has to read."""
        needed = []
        for ordinal in self._tracked.pop(resource_id, {}):
            vertex = self._graph.subtasks[ordinal]
            partition = vertex.subtask_index
            is_needed = False
            for result in _blocking_results(vertex):
                if result.lose(partition):
                    groups = (edge.group_of_partition(partition) for edge in result.edges)
                    is_needed |= any(group.readers for group in groups)
                    is_needed |= result.result_type.is_persistent
            if is_needed:
                needed.append(vertex)
        return needed

    def let_go_of_all(
        self, *, is_finished: bool
    ) -> tuple[list[PlacedPartition], list[PlacedPartition]]:
        """The job has ended: what is to be released, and what is to be promoted (what is
        persistent, if the job has finished)."""
        released: list[PlacedPartition] = []
        promoted: list[PlacedPartition] = []
        for tracked in tuple(self._tracked.values()):
            for ordinal in tuple(tracked):
                vertex = self._graph.subtasks[ordinal]
                if is_finished:
                    for result in _blocking_results(vertex):
                        if result.result_type.is_persistent:
                            promoted += self._hand_over(result, vertex.subtask_index)
                released += self.reset(vertex)
        return released, promoted

    def holds_partitions_on(self, resource_id: ResourceID) -> bool:
        """Whether finished partitions are kept there (JM-15)."""
        return bool(self._tracked.get(resource_id))

    def _hand_over(self, result: IntermediateResult, partition: int) -> Iterable[PlacedPartition]:
        """It is not the job's any more; empty if it was not before."""
        if not result.lose(partition):
            return ()
        assert result.data_set_id is not None
        vertex = result.producer.subtasks[partition]
        execution = vertex.current
        assert execution.slot is not None
        if not any(r.is_there(partition) for r in _blocking_results(vertex)):
            self._untrack(vertex)
        partition_id = ResultPartitionID(
            self._graph.graph_id, result.data_set_id, partition, execution.attempt_number
        )
        return ((execution.slot.location, partition_id),)

    def _untrack(self, vertex: ExecutionVertex) -> None:
        slot = vertex.current.slot
        if slot is not None:
            tracked = self._tracked.get(slot.location.resource_id, {})
            tracked.pop(vertex.ordinal, None)
            if not tracked:
                self._tracked.pop(slot.location.resource_id, None)


def _blocking_results(vertex: ExecutionVertex) -> list[IntermediateResult]:
    """Those that its TaskExecutor keeps."""
    return [
        result
        for result in vertex.job_vertex.results
        if not result.is_pipelined and not result.is_stored
    ]
