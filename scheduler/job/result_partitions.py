"""Tracks where result partitions of a job are, and decides when they are released (EX-14)."""

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
"""(location of a partition, id of the partition)"""


class PartitionTracker:
    """Tracks finished blocking partitions on TaskExecutors, and decides when to release them. A
    partition can be released when every region that reads it is finished. A partition without a
    reader stays until the job ends, and so do partitions in the cluster's storage, which are not on
    TaskExecutors.

    A restarted region reads its inputs again. Inputs that were released before are gone, and the
    same failover produces them again.
    """

    def __init__(self, graph: ExecutionGraph, regions: PipelinedRegions) -> None:
        self._graph = graph
        self._regions = regions
        self._tracked: dict[ResourceID, dict[int, None]] = {}
        """TaskExecutor -> ordinals of finished subtasks whose partitions are there."""
        for group in blocking_groups(graph):
            group.readers = len(regions.readers(group))

    def finished(self, vertex: ExecutionVertex) -> None:
        """Start to track the blocking partitions of a finished subtask. They are on the
        TaskExecutor where the subtask ran."""
        execution = vertex.current
        if execution.slot is not None and _blocking_results(vertex):
            where = execution.slot.location.resource_id
            self._tracked.setdefault(where, {})[vertex.ordinal] = None

    def disown(self, execution: Execution) -> list[PlacedPartition]:
        """Return the blocking partitions that an attempt has or may have produced, although it
        counts as failed. The caller must release them, because nobody will read them."""
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
        """Return the partitions that no unfinished region reads any more, because this region is
        finished. The caller must release these partitions."""
        released: list[PlacedPartition] = []
        for group in self._regions.regions[index].reads:
            group.readers -= 1
            if group.readers:
                continue
            result = group.edge.result
            if result.is_stored:
                continue
            for partition in group.partitions:
                if not any(e.group_of_partition(partition).readers for e in result.edges):
                    released += self._take(result, partition)
        return released

    def region_unfinished(self, index: int) -> None:
        """Count the region as a reader of its inputs again, because it is going to run again."""
        for group in self._regions.regions[index].reads:
            group.readers += 1

    def reset(self, vertex: ExecutionVertex) -> list[PlacedPartition]:
        """Stop tracking the partitions of a subtask that is going to be executed again. Returns the
        partitions to release."""
        released: list[PlacedPartition] = []
        for result in _blocking_results(vertex):
            released += self._take(result, vertex.subtask_index)
        self._untrack(vertex)
        return released

    def missing(self, missing: ResultPartitionID) -> Iterable[PlacedPartition]:
        """Mark as gone a partition that a reader could not read. Returns the partition if it was
        not gone before. Nothing changes if the producer has been executed again since."""
        result = self._graph.result(missing.data_set_id)
        if missing.graph_id != self._graph.graph_id or result is None or result.is_pipelined:
            return ()
        if not 0 <= missing.partition < result.producer.parallelism:
            return ()
        producer = result.producer.subtasks[missing.partition]
        if producer.current.attempt_number != missing.attempt_number:
            return ()
        if result.is_stored:
            result.lose(missing.partition)
            return ()
        return self._take(result, missing.partition)

    def task_executor_lost(self, resource_id: ResourceID) -> list[ExecutionVertex]:
        """Mark the partitions on a lost TaskExecutor as gone. Returns the producers of partitions
        that a region still has to read."""
        needed = []
        for ordinal in self._tracked.pop(resource_id, {}):
            vertex = self._graph.subtasks[ordinal]
            partition = vertex.subtask_index
            is_needed = False
            for result in _blocking_results(vertex):
                if result.lose(partition):
                    groups = (edge.group_of_partition(partition) for edge in result.edges)
                    is_needed |= any(group.readers for group in groups)
            if is_needed:
                needed.append(vertex)
        return needed

    def let_go_of_all(self) -> list[PlacedPartition]:
        """Stop tracking all partitions, because the job has ended.
        Returns the partitions to release."""
        released: list[PlacedPartition] = []
        for tracked in tuple(self._tracked.values()):
            for ordinal in tuple(tracked):
                released += self.reset(self._graph.subtasks[ordinal])
        return released

    def holds_partitions_on(self, resource_id: ResourceID) -> bool:
        """Return whether this TaskExecutor has finished partitions of the job that are not released
        (JM-15)."""
        return bool(self._tracked.get(resource_id))

    def _take(self, result: IntermediateResult, partition: int) -> Iterable[PlacedPartition]:
        """Mark the partition as gone and stop tracking it. Yields (location, id) of the partition,
        which the caller must release; nothing if it was gone already."""
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
    return [
        result
        for result in vertex.job_vertex.results
        if not result.is_pipelined and not result.is_stored
    ]
