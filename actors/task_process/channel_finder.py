"""Finds the task processes with the partitions that a task reads through channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import (
    ChannelPlaces,
    JobPartition,
    ResultPartitionNotFoundError,
    TaskProcessListenerGateway,
)
from flinkray.core.errors import FlinkRayError, RecipientUnreachableError, RpcTimeoutError
from flinkray.core.ids import IntermediateDataSetID, JobID, ResultPartitionID
from flinkray.rpc import RpcService
from flinkray.rpc.shared_calls import SharedCalls
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import PartitionLocations
from flinkray.streaming.network import DataAddress

_ASK_AGAIN = (RpcTimeoutError, RecipientUnreachableError, JobMasterAwayError)
"""Errors after which the JobMaster is asked again for the state of the producer."""
_ASK_AGAIN_DELAY = 0.1
"""Seconds until the JobMaster is asked again."""

_BEFORE_IT_RUNS = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
)
"""States of a producer whose partition may not be there yet."""


class ProducerStates:
    """Asks the JobMaster for the states of producers, for all tasks of a process (JM-13)."""

    def __init__(
        self,
        rpc_service: RpcService,
        request: Callable[[JobID, ResultPartitionID], Coroutine[Any, Any, ExecutionState]],
    ) -> None:
        """Create the object without asking yet.
        *request* asks the JobMaster for the state of the task that produces a partition.
        """
        self._rpc_service = rpc_service
        self._request = request
        self._questions = SharedCalls[JobPartition, bool]()

    async def is_to_come(self, job_id: JobID, partition_id: ResultPartitionID) -> bool:
        """Return whether the task that produces the partition will still begin. False if it runs,
        has ended or was replaced. Waits while there is no JobMaster that knows. If several tasks
        ask at the same time, the JobMaster is asked once."""
        wanted = JobPartition(job_id, partition_id)
        return await self._questions.result(wanted, partial(self._ask, wanted))

    async def _ask(self, wanted: JobPartition) -> bool:
        while True:
            try:
                state = await self._request(wanted.job_id, wanted.partition)
            except _ASK_AGAIN:  # the next JobMaster answers, or the waiting task is cancelled
                await self._rpc_service.pause(_ASK_AGAIN_DELAY)
            # the producer was replaced, or there is no JobMaster to ask
            except (FlinkRayError, ValueError):
                return False
            else:
                return state in _BEFORE_IT_RUNS


class ChannelFinder:
    """Finds the processes with the partitions that tasks read, for all tasks of this process.

    Simultaneous identical questions are asked once. If the producer of a partition is not deployed
    yet, the search is repeated after *initial_backoff* seconds, then after twice as long, and so on
    up to *max_backoff*. After that the search fails, unless the JobMaster says that the producer
    *is_to_come* (JM-13).
    """

    def __init__(
        self,
        rpc_service: RpcService,
        initial_backoff: float,
        max_backoff: float,
        is_to_come: Callable[[JobID, ResultPartitionID], Awaitable[bool]],
    ) -> None:
        self._rpc_service = rpc_service
        self._initial_backoff = initial_backoff
        self._max_backoff = max_backoff
        self._is_to_come = is_to_come
        self._questions = SharedCalls[tuple[JobID, IntermediateDataSetID, str], ChannelPlaces]()

    async def find(
        self, job_id: JobID, locations: PartitionLocations, partitions: Iterable[int]
    ) -> dict[int, DataAddress]:
        """Return the address of the process that has the partition, for each number in
        *partitions*.

        Raises:
            ResultPartitionNotFoundError: a partition is not found, even after all repetitions.
        """
        wanted = {locations.partition_id(p): p for p in partitions}
        found: dict[int, DataAddress] = {}
        backoff = self._initial_backoff
        while True:
            cause = await self._look(job_id, locations, wanted, found)
            if not wanted:
                return found
            if backoff > self._max_backoff:
                missing, partition = next(iter(wanted.items()))
                if not await self._is_to_come(job_id, missing):
                    where = locations.location_of(partition).resource_id
                    raise ResultPartitionNotFoundError(missing, where) from cause
                backoff = self._max_backoff
            await self._rpc_service.pause(backoff)
            backoff *= 2

    async def _look(
        self,
        job_id: JobID,
        locations: PartitionLocations,
        wanted: dict[ResultPartitionID, int],
        found: dict[int, DataAddress],
    ) -> FlinkRayError | None:
        """Look once for the wanted partitions, and move those found from *wanted* to *found*.
        Returns the error of a TaskExecutor that did not answer, if any."""
        cause: FlinkRayError | None = None
        hosts = dict.fromkeys(locations.location_of(p).address for p in wanted.values())
        for address in hosts:
            try:
                question = (job_id, locations.data_set_id, address)
                places = await self._questions.result(question, partial(self._ask, *question))
            except FlinkRayError as error:
                cause = error
                continue
            for process, partitions in zip(places.addresses, places.partitions, strict=True):
                for partition_id in partitions:
                    if partition_id in wanted:
                        found[wanted.pop(partition_id)] = process
        return cause

    async def _ask(
        self, job_id: JobID, data_set_id: IntermediateDataSetID, address: str
    ) -> ChannelPlaces:
        executor = await self._rpc_service.connect(address, TaskProcessListenerGateway)
        return await executor.find_channels(job_id, data_set_id)
