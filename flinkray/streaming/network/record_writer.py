"""The writer of a task for one result partition."""

from __future__ import annotations

from flinkray.streaming.channels import RecordWriter
from flinkray.streaming.network.result_partition import ResultPartition
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.records.partitioners import StreamPartitioner


class PartitionWriter(RecordWriter):
    """Divides batches among the subpartitions of a partition.

    The subpartitions merge small batches, by size and buffer time-out.
    """

    def __init__(self, partition: ResultPartition, partitioner: StreamPartitioner) -> None:
        super().__init__(partition.subpartitions, partitioner)
        self.partition = partition
        self._puts = [subpartition.put for subpartition in partition.subpartitions]

    def has_room(self) -> bool:
        """Return whether the consumers keep up.

        Raises:
            ConsumerLostError, PartitionReleasedError: the output can no longer be read.
        """
        return self.partition.has_room()

    def process_block(self, block: Block) -> None:
        for channel, part in self.partitioner.split_block(block):
            self._puts[channel](part)

    def process_columns(self, columns: Columns) -> None:
        for channel, part in self.partitioner.split_columns(columns):
            self._puts[channel](part)

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        self.partition.barrier(barrier, settled)

    def end_of_data(self) -> None:
        self.partition.end_of_data()

    def is_processed(self) -> bool:
        """Return whether every consumer has processed all data.

        Raises:
            ConsumerLostError, PartitionReleasedError: a consumer will never do so.
        """
        return self.partition.is_processed

    def end_of_input(self) -> None:
        self.partition.end_of_input()
