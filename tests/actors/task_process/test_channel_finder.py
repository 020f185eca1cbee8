"""Finding the processes that have what a stream task reads."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.actors.gateways.task_process import (
    ChannelPlaces,
    ResultPartitionNotFoundError,
    TaskProcessListenerGateway,
)
from flinkray.actors.task_process.channel_finder import ChannelFinder
from flinkray.core.ids import IntermediateDataSetID, JobID, ResourceID, WorkerGroupId
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.tasks import PartitionLocations, pack_numbers
from flinkray.streaming.network import DataAddress
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH

JOB = JobID.generate()
DATA_SET = IntermediateDataSetID.generate()
PROCESS = DataAddress("TaskProcess-0", "1", "127.0.0.1", 1, None, None, False)

GROUP = WorkerGroupId("group")
NOWHERE = ChannelPlaces((), ())


def locations(address: str) -> PartitionLocations:
    where = WorkerLocation(ResourceID("executor"), address, "node", "127.0.0.1", 1, GROUP, 0)
    return PartitionLocations(GRAPH, DATA_SET, 0, (where,), pack_numbers([0]), pack_numbers([0]))


@pytest.mark.parametrize("late", [False, True])
@on_virtual_time
async def test_reader_waits_for_a_missing_producer_only_if_it_will_be_deployed(late: bool) -> None:
    """JM-13"""
    service = LocalRpcService()
    asked: list[Any] = []

    def find_channels(job_id: JobID, data_set_id: Any) -> ChannelPlaces:
        there = late and len(asked) >= 3
        return ChannelPlaces((PROCESS,), ((known.partition_id(0),),)) if there else NOWHERE

    executor = TestingGateway(TaskProcessListenerGateway)
    executor.on(TaskProcessListenerGateway.find_channels).calling(find_channels)
    known = locations(executor.start(service, "taskexecutor").address)

    async def is_to_come(job_id: JobID, partition: Any) -> bool:
        asked.append(partition)
        return late

    finder = ChannelFinder(service, 0.1, 1.0, is_to_come)
    try:
        if late:
            assert await finder.find(JOB, known, [0]) == {0: PROCESS}
        else:
            with pytest.raises(ResultPartitionNotFoundError, match="executor"):
                await finder.find(JOB, known, [0])
            assert len(asked) == 1
    finally:
        await service.close()
