"""What a vertex produces, and who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkray.core.ids import IntermediateDataSetID
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import (
    DistributionPattern,
    ResultMedium,
    ResultPartitionType,
)

if TYPE_CHECKING:
    from flinkray.scheduler.execution.execution_graph import ExecutionJobVertex


class PartitionGroup:
    """Partitions of a result that are read together, by the same consumers.

    Flink's ConsumedPartitionGroup and ConsumerVertexGroup in one: every consumer of the group reads
    all of its partitions, and nothing else of the edge.
    """

    __slots__ = ("consumers", "edge", "index", "partitions", "readers", "unfinished", "version")

    def __init__(self, edge: ResultEdge, index: int, partitions: range, consumers: range) -> None:
        self.edge = edge
        self.index = index
        self.partitions = partitions
        """Indices of producing subtasks."""
        self.consumers = consumers
        """Indices of consuming subtasks."""
        self.unfinished = len(partitions)
        """How many of its partitions are not finished."""
        self.readers = 0
        """How many regions that read it are not finished; counted by the PartitionTracker."""
        self.version = 0
        """Grows when a producer is executed anew."""

    @property
    def is_finished(self) -> bool:
        """Whether a blocking consumer may begin."""
        return self.unfinished == 0

    @property
    def producer_ordinals(self) -> range:
        """Execution vertices, as numbered by the execution graph."""
        first = self.edge.result.producer.first
        return range(first + self.partitions.start, first + self.partitions.stop)

    @property
    def consumer_ordinals(self) -> range:
        first = self.edge.consumer.first
        return range(first + self.consumers.start, first + self.consumers.stop)


class ResultEdge:
    """A vertex reads a result: the groups into which the distribution pattern divides that."""

    __slots__ = ("consumer", "groups", "index", "pattern", "result")

    def __init__(
        self,
        index: int,
        result: IntermediateResult,
        consumer: ExecutionJobVertex,
        pattern: DistributionPattern,
    ) -> None:
        self.index = index
        """Among all edges of the graph."""
        self.result = result
        self.consumer = consumer
        self.pattern = pattern
        sizes = (pattern, result.producer.parallelism, consumer.parallelism)
        self.groups = [
            PartitionGroup(
                self,
                number,
                distribution.partitions_of_group(*sizes, number),
                distribution.consumers_of_group(*sizes, number),
            )
            for number in range(distribution.number_of_groups(*sizes))
        ]

    def group_of_partition(self, partition: int) -> PartitionGroup:
        """The group that a partition is in."""
        return self.groups[
            distribution.group_of_partition(
                self.pattern, self.result.producer.parallelism, self.consumer.parallelism, partition
            )
        ]

    def group_of_consumer(self, subtask_index: int) -> PartitionGroup:
        """The group that a subtask of the consumer reads."""
        return self.groups[
            distribution.group_of_consumer(
                self.pattern,
                self.result.producer.parallelism,
                self.consumer.parallelism,
                subtask_index,
            )
        ]

    def subpartition_of(self, subtask_index: int) -> int:
        """Which subpartition of each partition a subtask of the consumer reads."""
        return distribution.subpartition_of(
            self.pattern,
            self.result.producer.parallelism,
            self.consumer.parallelism,
            subtask_index,
        )


class IntermediateResult:
    """A data set in execution: partition i is produced by subtask i.

    Of a partition is known whether it is *finished* and whether it is *gone* (released, or lost
    with its TaskExecutor); for pipelined results the latter has no meaning, they are never read
    twice.
    """

    __slots__ = ("_finished", "_gone", "data_set_id", "edges", "medium", "producer", "result_type")

    def __init__(
        self,
        data_set_id: IntermediateDataSetID | None,
        result_type: ResultPartitionType,
        producer: ExecutionJobVertex,
        medium: ResultMedium = ResultMedium.CHANNELS,
    ) -> None:
        self.data_set_id = data_set_id
        """None: there is no data, one vertex just runs after another (Spark stages)."""
        self.result_type = result_type
        self.producer = producer
        self.medium = medium
        self.edges: list[ResultEdge] = []
        """Who reads it."""
        self._finished = bytearray(producer.parallelism)
        self._gone = bytearray(producer.parallelism)

    @property
    def is_pipelined(self) -> bool:
        return self.result_type.is_pipelined

    @property
    def is_stored(self) -> bool:
        """Whether it lies in the cluster's storage: the death of a TaskExecutor takes nothing of
        it, and it stays until the job ends."""
        return self.medium is ResultMedium.FILES

    def is_finished(self, partition: int) -> bool:
        """Whether all of it was produced."""
        return bool(self._finished[partition])

    def is_there(self, partition: int) -> bool:
        """Whether it was produced and is not gone."""
        return bool(self._finished[partition]) and not self._gone[partition]

    def is_available(self, partition: int) -> bool:
        """Whether it is not gone: it is there, or will be once its producer has finished."""
        return not self._gone[partition]

    def finish(self, partition: int) -> list[PartitionGroup]:
        """It is produced; the groups that are finished by it."""
        if self._finished[partition]:
            return []
        self._finished[partition] = True
        done = []
        for edge in self.edges:
            group = edge.group_of_partition(partition)
            group.unfinished -= 1
            if not group.unfinished:
                done.append(group)
        return done

    def lose(self, partition: int) -> bool:
        """It is gone; whether it was there until now."""
        was_there = self.is_there(partition)
        if self._finished[partition]:
            self._gone[partition] = True
        return was_there

    def reset(self, partition: int) -> list[PartitionGroup]:
        """It is going to be produced anew; the groups that were finished and are no more."""
        self._gone[partition] = False
        undone = []
        for edge in self.edges:
            group = edge.group_of_partition(partition)
            group.version += 1
            if self._finished[partition]:
                if not group.unfinished:
                    undone.append(group)
                group.unfinished += 1
        self._finished[partition] = False
        return undone
