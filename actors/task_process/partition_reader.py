"""Reading what tasks elsewhere produce: by asking for one piece after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import islice
from typing import Any

from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import (
    JobPartition,
    PartitionData,
    ResultPartitionNotFoundError,
    TaskProcessGateway,
    TaskProcessListenerGateway,
)
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcError,
    RpcTimeoutError,
)
from flinkray.core.ids import IntermediateDataSetID, JobID, ResultPartitionID
from flinkray.rpc import RpcService
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import PartitionLocations

MAX_BYTES = 2**20
"""Asked for at once."""
MOST_MISSING = 100
"""Partitions that one error names: every reader's report has them."""

_ASK_AGAIN = (RpcTimeoutError, RecipientUnreachableError, JobMasterAwayError)
"""With these nobody has said anything about the producer."""
_ASK_AGAIN_DELAY = 0.1
"""Seconds."""

_BEFORE_IT_RUNS = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
)
"""States of a producer whose partition may not be there yet."""


class PartitionReader:
    """For all tasks of a process: what they have found out is kept for the next."""

    def __init__(
        self,
        rpc_service: RpcService,
        initial_backoff: float,
        max_backoff: float,
        *,
        producer_state: Callable[[JobID, ResultPartitionID], Coroutine[Any, Any, ExecutionState]],
    ) -> None:
        """A partition that is not found is looked for again after *initial_backoff* seconds, then
        after twice as long, and so on up to *max_backoff*, after which it is given up: unless its
        producer has not begun yet, as *producer_state* says, which asks the JobMaster (JM-13)."""
        self._rpc_service = rpc_service
        # for once: readers of one process ask together, those of many processes do not
        self._initial_backoff = rpc_service.jittered(initial_backoff)
        self._max_backoff = max_backoff
        self._producer_state = producer_state
        self._places: dict[
            tuple[JobID, IntermediateDataSetID, str], dict[ResultPartitionID, str]
        ] = {}
        """Job, data set, TaskExecutor's address -> partitions there and their task processes."""
        self._questions: dict[JobPartition, asyncio.Future[bool]] = {}
        self._searches: dict[tuple[JobID, IntermediateDataSetID, str], asyncio.Future[None]] = {}

    def forget_job(self, job_id: JobID) -> None:
        """The job is not here any more."""
        for key in [key for key in self._places if key[0] == job_id]:
            del self._places[key]

    async def pieces(
        self, job_id: JobID, locations: PartitionLocations, partition: int, subpartition: int
    ) -> AsyncIterator[tuple[bytes, ...]]:
        """The buffers of a subpartition, in their order, as they come.

        Raises:
            ResultPartitionNotFoundError: it cannot be read, or not any more.
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
                if not await self.is_to_come(job_id, partition_id):
                    raise ResultPartitionNotFoundError(
                        partition_id,
                        location.resource_id,
                        self._others_missing(key, locations, partition_id, location),
                    ) from cause
                backoff = self._max_backoff
            await asyncio.sleep(backoff)
            backoff *= 2

    async def is_to_come(self, job_id: JobID, partition_id: ResultPartitionID) -> bool:
        """Whether its producer is on its way.  One question at a time, for all tasks here."""
        wanted = JobPartition(job_id, partition_id)
        question = self._questions.get(wanted)
        if question is None:
            question = asyncio.ensure_future(self._ask_for_producer(wanted))
            self._questions[wanted] = question
            question.add_done_callback(lambda _: self._questions.pop(wanted))
        return await asyncio.shield(question)

    async def _ask_for_producer(self, wanted: JobPartition) -> bool:
        while True:
            try:
                state = await self._producer_state(wanted.job_id, wanted.partition)
            except _ASK_AGAIN:  # the next JobMaster answers, or who waits is cancelled
                await self._rpc_service.pause(_ASK_AGAIN_DELAY)
            except (FlinkRayError, ValueError):  # it was replaced, or there is nobody to ask
                return False
            else:
                return state in _BEFORE_IT_RUNS

    def _not_found(
        self,
        key: tuple[JobID, IntermediateDataSetID, str],
        partition_id: ResultPartitionID,
        error: FlinkRayError,
    ) -> None:
        """A process that cannot be reached has the other partitions, too, that it is said to
        have."""
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
        """What else should be there and is not: to be produced again together."""
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
        """The producer of a pipelined result waits for that."""
        backoff = self._initial_backoff
        wanted = JobPartition(job_id, partition_id)
        while backoff <= self._max_backoff:
            try:
                process = await self._find(job_id, partition_id, location)
                await process.read_partition(wanted, subpartition, position, MAX_BYTES)
                return
            except ResultPartitionNotFoundError:
                return  # it is gone, and nothing of it was missing here
            except RpcError:  # the producer may live all the same
                await asyncio.sleep(backoff)
                backoff *= 2

    async def _find(
        self, job_id: JobID, partition_id: ResultPartitionID, location: WorkerLocation
    ) -> TaskProcessGateway:
        key = (job_id, partition_id.data_set_id, location.address)
        address = self._places.get(key, {}).get(partition_id)
        if address is None:
            await self._ask_for(key)
            address = self._places.get(key, {}).get(partition_id)
        if address is None:
            raise ResultPartitionNotFoundError(partition_id, location.resource_id)
        return await self._rpc_service.connect(address, TaskProcessGateway)

    async def _ask_for(self, key: tuple[JobID, IntermediateDataSetID, str]) -> None:
        """One question at a time, for all tasks of this process."""
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = asyncio.ensure_future(self._ask(*key))
            search.add_done_callback(lambda done: self._searched(key, done))
        await asyncio.shield(search)

    def _searched(
        self, key: tuple[JobID, IntermediateDataSetID, str], done: asyncio.Future[None]
    ) -> None:
        del self._searches[key]
        if not done.cancelled():
            done.exception()  # it is told to those who wait; perhaps nobody does any more

    async def _ask(self, job_id: JobID, data_set_id: IntermediateDataSetID, address: str) -> None:
        self._places.pop((job_id, data_set_id, address), None)  # if there is no answer, none
        executor = await self._rpc_service.connect(address, TaskProcessListenerGateway)
        places = await executor.find_partitions(job_id, data_set_id)
        self._places[job_id, data_set_id, address] = {
            partition: process
            for process, partitions in zip(places.addresses, places.partitions, strict=True)
            for partition in partitions
        }
