"""Results of a stream job, read from the task that collects them, as far as they are asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from flinkray.actors.gateways.stream_coordinator import (
    CollectorPlace,
    StreamCoordinatorGateway,
    stream_coordinator_address,
)
from flinkray.actors.gateways.task_process import (
    PartitionData,
    ResultPartitionNotFoundError,
    TaskProcessGateway,
)
from flinkray.actors.task_process.collected_results import read_results
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import JobError, JobNotFoundError, RpcError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import RpcService
from flinkray.scheduler.reports.job_info import JobResult

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BYTES = 2**20
"""Asked for at once."""

_PAUSE = 0.05
"""Seconds until the job's coordinator is looked for again."""


class ResultsLostError(JobError):
    """The job has begun anew after some of its results had been read; they would come again."""


class StreamResults:
    """One reader, on the service's event loop.

    What the client does not take waits in the task, which then waits, too: neither there nor here
    does more than a few megabytes pile up.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        job_id: JobID,
        leader: Callable[[], Awaitable[JobMasterId | None]],
        result: Awaitable[JobResult],
    ) -> None:
        """*leader*: the job's JobMaster at present.  *result*: the job's, when it has ended."""
        self._rpc_service = rpc_service
        self._job_id = job_id
        self._leader = leader
        self._ended: asyncio.Future[JobResult] = asyncio.ensure_future(result)
        self._place: CollectorPlace | None = None
        self._position = 0
        self._is_complete = False

    async def next(self) -> list[Any] | None:
        """Some results, in their order; None: there are no more, and the job has finished.

        Raises:
            JobExecutionError, JobCancelledError: the job has not finished.
            ResultsLostError: it has begun anew.
        """
        while not self._is_complete:
            data = await self._unless_ended(self._read())
            if data is None:
                break
            self._position += len(data.buffers)
            if data.is_end:
                self._is_complete = True
                await self._unless_ended(self._read())  # which says that all was read
            if data.buffers:
                return [value for piece in data.buffers for value in read_results(piece)]
        JobExecutionResult.of(await self._ended)
        return None

    def close(self) -> None:
        """No more is wanted; the job goes on waiting unless it is cancelled."""
        self._ended.cancel()

    async def _unless_ended(self, reading: Coroutine[Any, Any, T]) -> T | None:
        """None: the job ends first."""
        read = asyncio.ensure_future(reading)
        try:
            both: list[asyncio.Future[Any]] = [read, self._ended]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return read.result() if read.done() else None
        finally:
            read.cancel()

    async def _read(self) -> PartitionData:
        while True:
            try:
                if self._place is None:
                    self._place = await self._find(None)
                process = await self._rpc_service.connect(self._place.address, TaskProcessGateway)
                return await process.read_partition(
                    self._place.partition, 0, self._position, MAX_BYTES
                )
            except (RpcError, ResultPartitionNotFoundError):
                if self._is_complete:
                    return PartitionData((), is_end=True)
                await asyncio.sleep(_PAUSE)
            place = await self._find(None)
            if place != self._place and self._position:
                raise ResultsLostError(
                    self._job_id,
                    "was restarted after some of its results had been read, and without a "
                    "checkpoint they would come again: run it again, or write to a sink",
                )
            self._place = place

    async def _find(self, known: CollectorPlace | None) -> CollectorPlace:
        while True:
            try:
                leader = await self._leader()
                if leader is not None:
                    address = stream_coordinator_address(self._job_id, leader)
                    coordinator = await self._rpc_service.connect(address, StreamCoordinatorGateway)
                    return await coordinator.find_results(known)
            except (RpcError, JobNotFoundError) as error:  # not there yet, or being replaced
                log.debug("job %s: its results are not found yet: %s", self._job_id, error)
            await asyncio.sleep(_PAUSE)
