"""Reads results of tasks elsewhere by requesting one piece after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import islice

from flinkray.actors.gateways.task_process import (
    JobPartition,
    PartitionData,
    ResultPartitionNotFoundError,
    TaskProcessGateway,
    TaskProcessListenerGateway,
)
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import IntermediateDataSetID, JobID, ResultPartitionID
from flinkray.rpc import RpcService
from flinkray.rpc.shared_calls import SharedCalls
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.tasks import PartitionLocations

MAX_BYTES = 2**20
"""Number of bytes that one request asks for."""
MOST_MISSING = 100
"""Largest number of partitions that one error names. The report of every reader contains them."""


class PartitionReader:
    """Reads partitions from other processes, for all tasks of one process. For later reads, it
    remembers in which process it has found a partition."""

    def __init__(
        self,
        rpc_service: RpcService,
        initial_backoff: float,
        max_backoff: float,
        is_to_come: Callable[[JobID, ResultPartitionID], Awaitable[bool]],
    ) -> None:
        """Create a reader. A partition that is not found is searched again after *initial_backoff*
        seconds, then after twice as long, and so on up to *max_backoff*; then the read fails.
        *is_to_come* returns whether the producer of a partition has not begun yet; while it has
        not, the search goes on."""
        self._rpc_service = rpc_service
        # jittered once: readers of one process ask together, readers of different processes do not
        self._initial_backoff = rpc_service.jittered(initial_backoff)
        self._max_backoff = max_backoff
        self._is_to_come = is_to_come
        self._places: dict[
            tuple[JobID, IntermediateDataSetID, str], dict[ResultPartitionID, str]
        ] = {}
        """(job, data set, TaskExecutor's address) -> partition -> address of its task process."""
        self._searches = SharedCalls[tuple[JobID, IntermediateDataSetID, str], None]()

    def forget_job(self, job_id: JobID) -> None:
        """Forget in which processes the partitions of a job are. Called when the job has left this
        process."""
        for key in [key for key in self._places if key[0] == job_id]:
            del self._places[key]

    async def pieces(
        self, job_id: JobID, locations: PartitionLocations, partition: int, subpartition: int
    ) -> AsyncIterator[tuple[bytes, ...]]:
        """Yield the buffers of a subpartition, in order, as they come.

        Raises:
            ResultPartitionNotFoundError: the partition cannot be read, or no longer.
        """
        partition_id = locations.partition_id(partition)
        location = locations.location_of(partition)
        position = 0
        while True:
            data = await self._read(
                job_id, locations, partition_id, location, subpartition, position
            )
            if data.buffers:
                yield data.buffers
            position += len(data.buffers)
            if data.is_end:
                break
        if data.buffers:
            await self._say_that_all_is_read(job_id, partition_id, location, subpartition, position)

    async def _read(
        self,
        job_id: JobID,
        locations: PartitionLocations,
        partition_id: ResultPartitionID,
        location: WorkerLocation,
        subpartition: int,
        position: int,
    ) -> PartitionData:
        key = (job_id, partition_id.data_set_id, location.address)
        backoff = self._initial_backoff
        wanted = JobPartition(job_id, partition_id)
        while True:
            try:
                process = await self._find(job_id, partition_id, location)
                return await process.read_partition(wanted, subpartition, position, MAX_BYTES)
            except (ResultPartitionNotFoundError, RpcError) as error:
                cause = error
                self._not_found(key, partition_id, error)
            if backoff > self._max_backoff:
                if not await self._is_to_come(job_id, partition_id):
                    raise ResultPartitionNotFoundError(
                        partition_id,
                        location.resource_id,
                        self._others_missing(key, locations, partition_id, location),
                    ) from cause
                backoff = self._max_backoff
            await asyncio.sleep(backoff)
            backoff *= 2

    def _not_found(
        self,
        key: tuple[JobID, IntermediateDataSetID, str],
        partition_id: ResultPartitionID,
        error: FlinkRayError,
    ) -> None:
        """Forget where a partition was, after *error*. If its process cannot be reached, forget all
        other partitions of this process, too."""
        places = self._places.get(key, {})
        address = places.pop(partition_id, None)
        if address is not None and isinstance(error, RpcError):
            for unreachable in [p for p, where in places.items() if where == address]:
                del places[unreachable]

    def _others_missing(
        self,
        key: tuple[JobID, IntermediateDataSetID, str],
        locations: PartitionLocations,
        partition_id: ResultPartitionID,
        location: WorkerLocation,
    ) -> tuple[ResultPartitionID, ...]:
        """Return further partitions that should be at *location* but were never found there: they
        are reported together with *partition_id*, so that all are produced again at once."""
        there = self._places.get(key, {})
        missing = (p for p in locations.partitions_at(location) if p not in there)
        return tuple(islice((p for p in missing if p != partition_id), MOST_MISSING))

    async def _say_that_all_is_read(
        self,
        job_id: JobID,
        partition_id: ResultPartitionID,
        location: WorkerLocation,
        subpartition: int,
        position: int,
    ) -> None:
        """Tell the process at *location* that the subpartition was read to its end: the producer of
        a pipelined result waits for this before it ends."""
        backoff = self._initial_backoff
        wanted = JobPartition(job_id, partition_id)
        while backoff <= self._max_backoff:
            try:
                process = await self._find(job_id, partition_id, location)
                await process.read_partition(wanted, subpartition, position, MAX_BYTES)
                return
            except ResultPartitionNotFoundError:
                return  # the partition is gone, and nothing was missing here
            except RpcError:  # the producer may still live
                await asyncio.sleep(backoff)
                backoff *= 2

    async def _find(
        self, job_id: JobID, partition_id: ResultPartitionID, location: WorkerLocation
    ) -> TaskProcessGateway:
        key = (job_id, partition_id.data_set_id, location.address)
        address = self._places.get(key, {}).get(partition_id)
        if address is None:
            await self._searches.result(key, partial(self._ask, *key))
            address = self._places.get(key, {}).get(partition_id)
        if address is None:
            raise ResultPartitionNotFoundError(partition_id, location.resource_id)
        return await self._rpc_service.connect(address, TaskProcessGateway)

    async def _ask(self, job_id: JobID, data_set_id: IntermediateDataSetID, address: str) -> None:
        self._places.pop((job_id, data_set_id, address), None)  # without an answer there are none
        executor = await self._rpc_service.connect(address, TaskProcessListenerGateway)
        places = await executor.find_partitions(job_id, data_set_id)
        self._places[job_id, data_set_id, address] = {
            partition: process
            for process, partitions in zip(places.addresses, places.partitions, strict=True)
            for partition in partitions
        }
