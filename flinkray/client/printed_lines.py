"""Shows the lines that the tasks of a job print, at the client that waits for the job."""

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
from flinkray.client.client_session import session_of
from flinkray.client.embedded_output import write_text
from flinkray.core.errors import FlinkRayError, JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.rpc.time_limit import retrieve
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph, JobVertex
from flinkray.scheduler.reports.job_info import JobResult

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAITING = 4 * 2**20
"""Most bytes that wait for standard output; with more, reading pauses."""
_PAUSE = 0.05
"""Seconds between two searches for the job's coordinator."""
_GRACE = 10.0
"""Seconds to wait for an answer after the job has ended."""


def submit_attached(client: ClusterClient, job: JobGraph, clear: Callable[[], None]) -> JobOutput:
    """Submit a job and return the display of the lines that the job prints. *clear* is called each
    time before lines are written. Raises the errors of :meth:`ClusterClient.submit`."""
    printing = _printing_to_client(job)
    client.submit(printing or job)
    return NoOutput() if printing is None else PrintedLinesDisplay(client, job.job_id, clear)


def _printing_to_client(job: JobGraph) -> JobGraph | None:
    """Return a copy of the job whose print sinks send their lines to the client, through the
    coordinator of the job's sources. None: the job has no print sink, or no sources; then lines go
    to the log."""
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
    """Interface of an object that shows what a job prints, while the client waits for the job."""

    def finish(self) -> None:
        """Wait until everything that the ended job has printed is written."""

    def close(self) -> None:
        """Drop the output that was not written yet. Idempotent."""


class NoOutput(JobOutput):
    """Shows nothing. Used for a job that prints nothing, or only to its log."""

    def finish(self) -> None:
        """Do nothing: there is no output."""

    def close(self) -> None:
        """Do nothing: there is no output."""


class PrintedLinesDisplay(JobOutput):
    """Reads the lines that one job prints, and writes them to standard output. Lines are read on
    the client's event loop and written in another thread, so a blocked terminal slows down the
    printing job, but no other work of the client."""

    def __init__(self, client: ClusterClient, job_id: JobID, clear: Callable[[], None]) -> None:
        """Begin to read the output of a submitted job. *clear* is called each time before lines are
        written."""
        self._session = session_of(client)
        self._job_id = job_id
        self._clear = clear
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._put = 0
        self._written = 0
        self._left_out = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: Future[None] = self._session.start(self._read())
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
            self._session.job_result(self._job_id)
        )
        try:
            await self._read_until(ended)
        finally:
            ended.add_done_callback(retrieve)  # the caller that waits for the job reports it
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
            except FlinkRayError as error:  # no coordinator yet, or it is being replaced, or gone
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
            if part.is_end and not part.texts:  # the next coordinator follows, or the job's end
                coordinator = None
                await asyncio.sleep(_PAUSE)
            await self._room()
        if not is_complete:
            self._tell("the last lines that the job has printed may be missing", str(known))

    async def _find(self) -> StreamCoordinatorGateway | None:
        owner = await self._session.source_coordinator(self._job_id)
        if owner is None:
            raise JobNotFoundError(self._job_id, "has no JobMaster at present")
        address = stream_coordinator_address(self._job_id, owner)
        return await self._session.rpc_service.connect(address, StreamCoordinatorGateway)

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
    """Return the answer of *asking*. None: the job has ended, and no answer came within a moment
    after that."""
    answer = asyncio.ensure_future(asking)
    try:
        both: list[asyncio.Future[Any]] = [answer, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait([answer], timeout=_GRACE)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()
