"""Reads the results of a stream job on demand from the task that collects them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
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
"""Most bytes asked for at once."""

_PAUSE = 0.05
"""Seconds between two searches for the job's coordinator."""


class ResultsLostError(JobError):
    """Raised when the job was restarted from a time before results that the user has seen already.

    Without a checkpoint that contains them, the job would produce these results a second time.
    """


class StreamResults:
    """Reads a job's results from the task that collects them. Used on the service's event loop.

    The task keeps results until the client reads them. If it has too many, it stops reading its
    input.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        job_id: JobID,
        owner: Callable[[], Awaitable[JobMasterId | None]],
        result: Awaitable[JobResult],
    ) -> None:
        """Create a reader, which has not read anything yet.

        *owner* returns the JobMaster that has started the coordinator of the job's sources; None:
        not known now. The coordinator knows where results are collected. *result* completes with
        the job's result when the job has ended.
        """
        self._rpc_service = rpc_service
        self._job_id = job_id
        self._owner = owner
        self._ended: asyncio.Future[JobResult] = asyncio.ensure_future(result)
        self._place: CollectorPlace | None = None
        self._pieces = ResultPieces()
        self._is_complete = False

    async def next(self) -> list[Any] | None:
        """Wait for the next results, and return them in order. None: there are no more, and the job
        has finished.

        With checkpoints, results come when a later checkpoint is complete, or at the job's end.

        Raises:
            JobExecutionError, JobCancelledError: the job has not finished.
            ResultsLostError: the job was restarted without a checkpoint of results that were shown.
        """
        while not (self._is_complete and self._shows_at_once):
            data = await self._unless_ended(self._read())
            if data is None:
                break
            shown = _values(self._pieces.read(data, are_final=self._shows_at_once))
            if data.is_end:
                self._is_complete = True
                await self._unless_ended(self._read())  # the answer says that everything was read
            if shown:
                return shown
            if self._is_complete and not self._shows_at_once:
                await self._unless_ended(self._go_on_elsewhere())
        JobExecutionResult.of(await self._ended)
        return _values(self._pieces.rest()) or None

    @property
    def _shows_at_once(self) -> bool:
        return self._place is not None and self._place.restored is None

    async def _go_on_elsewhere(self) -> None:
        """Wait until a new attempt of the collecting task has started, and read from it from now
        on. Called when all results were read but the job has not ended: a failure may still restart
        it."""
        self._go_to(await self._find(self._place))

    def _go_to(self, place: CollectorPlace) -> None:
        """Read from *place* (address and attempt of the collecting task) from now on. Raises
        ResultsLostError: this attempt would send results again that were shown already."""
        if place == self._place:
            return
        if not self._pieces.go_on_at(place):
            raise ResultsLostError(
                self._job_id,
                "was restarted after some of its results had been shown, and without a "
                "checkpoint that has them they would come again: run it again, enable "
                "checkpoints, or write to a sink",
            )
        self._place = place
        self._is_complete = False

    def close(self) -> None:
        """Stop reading. If the job is not cancelled, the collecting task blocks when its buffer is
        full."""
        self._ended.cancel()

    async def _unless_ended(self, reading: Coroutine[Any, Any, T]) -> T | None:
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
                    self._go_to(await self._find(None))
                assert self._place is not None
                process = await self._rpc_service.connect(self._place.address, TaskProcessGateway)
                return await process.read_partition(
                    self._place.partition, 0, self._pieces.position, MAX_BYTES
                )
            except (RpcError, ResultPartitionNotFoundError):
                if self._is_complete:
                    return PartitionData((), is_end=True)
                await asyncio.sleep(_PAUSE)
            self._go_to(await self._find(None))

    async def _find(self, known: CollectorPlace | None) -> CollectorPlace:
        while True:
            try:
                owner = await self._owner()
                if owner is not None:
                    address = stream_coordinator_address(self._job_id, owner)
                    coordinator = await self._rpc_service.connect(address, StreamCoordinatorGateway)
                    return await coordinator.find_results(known)
            except (RpcError, JobNotFoundError) as error:  # missing, or being replaced
                log.debug("job %s: its results are not found yet: %s", self._job_id, error)
            await asyncio.sleep(_PAUSE)


def _values(pieces: list[bytes]) -> list[Any]:
    return [value for piece in pieces for value in read_results(piece)]


class ResultPieces:
    """Buffer of result pieces, which are numbered from 0 over all attempts. After a failure the
    next attempt writes the pieces after its checkpoint again, with the same numbers. So a piece is
    not shown before no attempt can write it again."""

    def __init__(self) -> None:
        self.position = 0
        """Number of the next piece to be read, counted over all attempts."""
        self.shown = 0
        """Number of the first piece that was not shown yet."""
        self._kept: deque[tuple[int, bytes]] = deque()
        """(number, piece) of the pieces that were read and are not shown yet."""

    def read(self, data: PartitionData, *, are_final: bool) -> list[bytes]:
        """Add the pieces in *data*, and return those pieces of the buffer that can be shown now:
        pieces that no attempt can write again, or all pieces if *are_final*."""
        begin, self.position = self.position, self.position + len(data.buffers)
        self._kept.extend(enumerate(data.buffers, begin))
        return self.rest() if are_final else self._up_to(data.committed)

    def rest(self) -> list[bytes]:
        """Return the pieces that were read but not shown. Called when the job has finished."""
        return self._up_to(self.position)

    def _up_to(self, number: int) -> list[bytes]:
        pieces = []
        while self._kept and self._kept[0][0] < number:
            self.shown, piece = self._kept[0][0] + 1, self._kept.popleft()[1]
            pieces.append(piece)
        return pieces

    def go_on_at(self, place: CollectorPlace) -> bool:
        """Continue with the results of another attempt at *place*, and return True. Pieces in the
        buffer that this attempt writes again are dropped. Return False, and change nothing, if the
        attempt would write pieces again that were shown."""
        if place.restored is None:
            return not self.position
        if place.restored < self.shown:
            return False
        self.position = min(self.position, max(place.first, self.shown))
        while self._kept and self._kept[-1][0] >= self.position:
            self._kept.pop()
        return True
