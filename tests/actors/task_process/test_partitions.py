"""Results that are held until they are read."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.task_process import (
    READ_WAIT,
    JobPartition,
    ResultPartitionNotFoundError,
)
from flinkray.actors.task_process.partitions import HeldPartition, ResultPartitions
from flinkray.core.ids import IntermediateDataSetID, JobID, ResultPartitionID
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, number

PARTITION = JobPartition(
    number(JobID, 1), ResultPartitionID(GRAPH, number(IntermediateDataSetID, 1), 0, 0)
)


@on_virtual_time
async def test_waiting_reader_is_told_at_once_that_the_partition_was_removed() -> None:
    """A reader of a restarted task's results then looks for the next attempt."""
    partitions = ResultPartitions("here")
    partitions.add(PARTITION, HeldPartition(1, is_pipelined=True))
    reading = asyncio.ensure_future(partitions.read(PARTITION, 0, 0, 1000))
    await asyncio.sleep(READ_WAIT / 2)
    partitions.remove(PARTITION)
    with pytest.raises(ResultPartitionNotFoundError):
        await reading
    assert asyncio.get_running_loop().time() < READ_WAIT
