"""Changes the parallelism bounds of running elastic jobs (DI-20)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flinkray.actors.dispatcher.managed_job import ManagedJob, Resizing
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways.messages import StoredJob
from flinkray.core.errors import FlinkRayError, JobStateError, RpcError
from flinkray.core.ids import DispatcherId
from flinkray.ha import JobGraphStore
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.elastic.parallelism import (
    NOT_KNOWN,
    Parallelism,
    parallelism_bounds,
    with_bounds,
)
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.5
"""Seconds until unanswered bounds are sent to a JobMaster again."""


class JobResizing:
    """Resizes jobs. Lives on the Dispatcher's main thread.

    A change is stored before it takes effect. Then every JobMaster of the job learns of it: the
    present JobMaster at once, later ones when they register.
    """

    def __init__(
        self,
        dispatcher: FencedRpcEndpoint[DispatcherId],
        graphs: JobGraphStore[StoredJob],
        leave_to_successor: Callable[[FlinkRayError], Awaitable[None]],
    ) -> None:
        """Create the object that resizes the Dispatcher's jobs.
        *leave_to_successor* is called with the error after a failed write. It raises if another
        Dispatcher leads.
        """
        self._dispatcher = dispatcher
        self._graphs = graphs
        self._leave_to_successor = leave_to_successor

    async def resize(self, job: ManagedJob, bounds: tuple[ParallelismBounds, ...]) -> None:
        """Resize a job; see :meth:`DispatcherGateway.resize_job`. A repeated request for the same
        change that is still under way waits for the first and gets the same answer."""
        if job.resizing is not None:
            if job.resizing.bounds != bounds:
                raise JobStateError(job.job_id, "another change of its parallelism is under way")
            await asyncio.shield(job.resizing.stored)
            return
        stored: asyncio.Future[None] = self._dispatcher.rpc_service.loop.create_future()
        job.resizing = Resizing(bounds, stored)
        try:
            await self._change(job, bounds)
        except FlinkRayError as error:
            stored.set_exception(error)
            stored.exception()
            raise
        stored.set_result(None)
        if not await self._is_told(job):
            self._dispatcher.create_task(self._keep_telling(job), f"resize {job.job_id}")

    async def _change(self, job: ManagedJob, bounds: tuple[ParallelismBounds, ...]) -> None:
        known = await self._max_parallelism(job)
        try:
            changed = with_bounds(job.graph, bounds, known)
        except JobStateError:
            job.resizing = None
            raise
        try:
            await self._store(job, changed)
        except FlinkRayError as error:
            self._dispatcher.create_task(self._withdraw(job), f"resize {job.job_id}")
            await self._leave_to_successor(error)
            text = f"its new parallelism could not be stored: {error}"
            raise JobStateError(job.job_id, text) from error
        job.resizing = None
        if job.outcome is not None:
            raise JobStateError(job.job_id, "it has ended")

    async def _max_parallelism(self, job: ManagedJob) -> Parallelism:
        """Ask the JobMaster for the maximum parallelism of the vertices; return it by vertex id.
        NOT_KNOWN if there is no JobMaster, or if it does not answer or does not know yet."""
        if job.gateway is None:
            return NOT_KNOWN
        try:
            return dict(await job.gateway.request_max_parallelism())
        except (RpcError, JobStateError) as error:
            log.info("%s: the maximum parallelisms are not known: %s", job.text, error)
            return NOT_KNOWN

    async def _store(self, job: ManagedJob, changed: JobGraph) -> None:
        async with job.storing:
            if job.outcome is None:
                await self._graphs.put_job_graph(job.stored(graph=changed))
                job.graph = changed

    async def _withdraw(self, job: ManagedJob) -> None:
        """Store the job with its earlier bounds, because storing the changed bounds has failed:
        that write may have taken effect all the same. Repeated until it succeeds."""
        async with job.storing:
            if job.outcome is None:
                stored = job.stored()
                await retry_until_done(
                    f"{job.text}: cannot take back its new parallelism yet",
                    lambda: self._graphs.put_job_graph(stored),
                )
        job.resizing = None

    async def _is_told(self, job: ManagedJob) -> bool:
        """Send the present bounds to the JobMaster. Returns False if it has not answered; True if
        it has answered, or if there is no JobMaster or the job has ended."""
        if job.gateway is None or job.outcome is not None:
            return True
        try:
            await job.gateway.resize(self._dispatcher.fencing_token, parallelism_bounds(job.graph))
        except RpcError as error:
            log.info(
                "%s: the parallelism bounds cannot be sent to the JobMaster: %s", job.text, error
            )
            return False
        return True

    async def _keep_telling(self, job: ManagedJob) -> None:
        is_told = False
        while not is_told:
            await self._dispatcher.rpc_service.pause(_RETRY_DELAY)
            is_told = await self._is_told(job)
