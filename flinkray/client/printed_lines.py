"""Showing at the client what the tasks of its job print."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flinkray.actors.gateways.stream_coordinator import (
    PrintedPart,
    StreamCoordinatorGateway,
    stream_coordinator_address,
)
from flinkray.actors.shared.chain_code import PRINTED_LINES, TO_CLIENT
from flinkray.client.standard_output import write_text
from flinkray.core.errors import FlinkRayError, JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph, JobVertex
from flinkray.scheduler.reports.job_info import JobResult

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAITING = 4 * 2**20
"""Bytes that wait for the terminal, or whatever standard output is; then no more are read."""
_PAUSE = 0.05
"""Seconds until the job's coordinator is looked for again."""
_GRACE = 10.0
"""Seconds for which an answer is waited for when the job has ended."""


def submit_attached(client: ClusterClient, job: JobGraph, clear: Callable[[], None]) -> JobOutput:
    """Submit a job and show here what it prints; *clear* is called before lines are written.

    Raises: see :meth:`ClusterClient.submit`.
    """
    printing = _printing_to_client(job)
    client.submit(printing or job)
    return NoOutput() if printing is None else PrintedLinesDisplay(client, job.job_id, clear)


def _printing_to_client(job: JobGraph) -> JobGraph | None:
    """The same job, whose print sinks write to its client; None: it has none.

    The lines go by the coordinator of the job's sources.  In a job without such sources, whose
    tasks read what other stages wrote, they go to the log.
    """
    has_coordinator = any(v.invokable.kind == STREAM and not v.inputs for v in job.vertices)
    if not has_coordinator or not any(_prints(vertex) for vertex in job.vertices):
        return None
    vertices = tuple(_to_client(v) if _prints(v) else v for v in job.vertices)
    return replace(job, vertices=vertices)


def _prints(vertex: JobVertex) -> bool:
    return PRINTED_LINES in vertex.invokable.configuration


def _to_client(vertex: JobVertex) -> JobVertex:
    configuration = {**vertex.invokable.configuration, PRINTED_LINES: TO_CLIENT}
    return replace(vertex, invokable=replace(vertex.invokable, configuration=configuration))


class JobOutput(Protocol):
    """What a job prints, as whoever waits for it has it."""

    def finish(self) -> None:
        """The job has ended: returns when all that it printed is written."""

    def close(self) -> None:
        """What has not been written yet is not wanted.  Idempotent."""


class NoOutput(JobOutput):
    """Of a job that prints nothing, or to its log."""

    def finish(self) -> None:
        """There is nothing."""

    def close(self) -> None:
        """There is nothing."""


class PrintedLinesDisplay(JobOutput):
    """Of one job: reads on the client's event loop, and writes to standard output in a thread, so
    that a terminal which stands still holds up nothing but the job."""

    def __init__(self, client: ClusterClient, job_id: JobID, clear: Callable[[], None]) -> None:
        """*clear* is called before lines are written, to make room.  The job was submitted."""
        self._client = client
        self._job_id = job_id
        self._clear = clear
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._put = 0
        self._written = 0
        self._left_out = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: Future[None] = client.start(self._read())
        self._writer = threading.Thread(target=self._write_all, name="printed lines", daemon=True)
        self._writer.start()

    def finish(self) -> None:
        with suppress(futures.CancelledError):
            self._reading.result()
        self._writer.join()

    def close(self) -> None:
        self._reading.cancel()

    # --- in the thread ------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (text := self._texts.get()) is not None:
            self._clear()
            try:
                write_text(text)
            except (OSError, ValueError) as error:  # a closed pipe, a closed file
                log.warning("what job %s prints is not shown any more: %s", self._job_id, error)
                self._reading.cancel()
                return
            self._written += len(text)
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop has ended: nothing more is read
                    self._loop.call_soon_threadsafe(self._has_room.set)

    # --- on the client's event loop -----------------------------------------------------------

    async def _read(self) -> None:
        self._loop = asyncio.get_running_loop()
        ended: asyncio.Future[JobResult] = asyncio.ensure_future(
            self._client.job_result(self._job_id)
        )
        try:
            await self._read_until(ended)
        finally:
            ended.add_done_callback(_retrieve)
            ended.cancel()
            self._texts.put(None)

    async def _read_until(self, ended: asyncio.Future[JobResult]) -> None:
        coordinator: StreamCoordinatorGateway | None = None
        known: str | None = None
        position = 0
        is_complete = True
        while True:
            try:
                coordinator = coordinator or await _within_job(self._find(), ended)
                if coordinator is None:
                    break
                part = await _within_job(coordinator.read_printed(known, position), ended)
            except FlinkRayError as error:  # it is not there yet, or being replaced, or gone
                log.debug("job %s: what it prints is not read: %s", self._job_id, error)
                if ended.done():
                    break
                coordinator = None
                await asyncio.sleep(_PAUSE)
                continue
            if part is None:
                break
            self._take(part, known)
            known, position, is_complete = part.coordinator, part.position, part.is_end
            if part.is_end and not part.texts and ended.done():
                break
            if part.is_end and not part.texts:  # the next one, or the job's end
                coordinator = None
                await asyncio.sleep(_PAUSE)
            await self._room()
        if not is_complete:
            self._tell("the last lines that the job has printed may be missing", str(known))

    async def _find(self) -> StreamCoordinatorGateway | None:
        owner = await self._client.source_coordinator(self._job_id)
        if owner is None:
            raise JobNotFoundError(self._job_id, "has no JobMaster at present")
        address = stream_coordinator_address(self._job_id, owner)
        return await self._client.rpc_service.connect(address, StreamCoordinatorGateway)

    def _take(self, part: PrintedPart, known: str | None) -> None:
        if part.coordinator != known:
            self._left_out = 0
        if part.left_out > self._left_out:
            number = part.left_out - self._left_out
            self._tell(
                f"{number} printed line{'s' if number > 1 else ''} left out here", part.coordinator
            )
            self._left_out = part.left_out
        for data in part.texts:
            self._add(data.decode("utf-8", "surrogatepass"))

    def _tell(self, what: str, coordinator: str) -> None:
        self._add(f"… {what}: see the log of {coordinator}\n")

    def _add(self, text: str) -> None:
        self._put += len(text)
        self._texts.put(text)

    async def _room(self) -> None:
        while self._put - self._written > MOST_WAITING:
            self._has_room.clear()
            if self._put - self._written > MOST_WAITING:
                await self._has_room.wait()


async def _within_job(asking: Coroutine[Any, Any, T], ended: asyncio.Future[JobResult]) -> T | None:
    """The answer; None: none comes, and the job has ended."""
    answer = asyncio.ensure_future(asking)
    try:
        both: list[asyncio.Future[Any]] = [answer, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait([answer], timeout=_GRACE)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()


def _retrieve(ended: asyncio.Future[JobResult]) -> None:
    """Whoever waits for the job tells of its errors."""
    if not ended.cancelled():
        ended.exception()
