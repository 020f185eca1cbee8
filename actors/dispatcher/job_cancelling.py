"""Cancelling jobs: because a client says so, or because the client is lost that they end with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from flinkray.actors.dispatcher.client_leases import ClientLeases
from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways.messages import StoredJob
from flinkray.core.client_options import CLIENT_HEARTBEAT_TIMEOUT
from flinkray.core.config_option import format_duration
from flinkray.core.ids import JobID
from flinkray.ha import JobGraphStore, StoreError
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph.job_graph import AttachedClient
from flinkray.scheduler.reports.job_info import ExceptionEntry

log = logging.getLogger(__name__)


class JobCancelling:
    """Lives on the Dispatcher's main thread.

    That a job is to be cancelled, and why, is stored before it counts: every JobMaster of the job
    hears of it, the present one at once, others when they register.
    """

    def __init__(
        self,
        dispatcher: RpcEndpoint,
        graphs: JobGraphStore[StoredJob],
        job_masters: JobMasterSupervision,
        job: Callable[[JobID], ManagedJob | None],
    ) -> None:
        """*job* finds a job that is not cleaned up yet."""
        self._dispatcher = dispatcher
        self._graphs = graphs
        self._job_masters = job_masters
        self._job = job
        self._withdrawing: dict[JobID, asyncio.Task[None]] = {}
        self._clients = ClientLeases(dispatcher, self._client_is_lost)

    async def cancel(self, job: ManagedJob, cause: ExceptionEntry | None = None) -> None:
        """Returns when it is stored and will be done.  *cause*: if it is not what a client wants.

        Raises:
            StoreError: it could not be stored, and will not be.
        """
        await asyncio.shield(job.accepted)
        async with job.storing:
            if not job.cancel_requested and job.outcome is None:
                stored = job.stored(cancel_requested=True, cancel_cause=cause)
                try:
                    await self._graphs.put_job_graph(stored)
                except StoreError:
                    self._withdraw_later(job)
                    raise
                job.cancel_requested, job.cancel_cause = True, cause
        await self._job_masters.cancel(job)

    def _withdraw_later(self, job: ManagedJob) -> None:
        """What failed to be stored may be there all the same, and the next Dispatcher would cancel
        a job of which people were told that it goes on."""
        if job.job_id not in self._withdrawing:
            name = f"job {job.job_id} is not cancelled"
            work = retry_until_done(f"{name}: that is not stored yet", lambda: self._withdraw(job))
            task = self._withdrawing[job.job_id] = self._dispatcher.create_task(work, name)
            task.add_done_callback(lambda _: self._withdrawing.pop(job.job_id))

    async def _withdraw(self, job: ManagedJob) -> None:
        async with job.storing:
            if not job.cancel_requested and job.outcome is None:
                await self._graphs.put_job_graph(job.stored())

    def await_client(self, job: ManagedJob) -> None:
        """From now on, if the job ends with its client: a client that this Dispatcher has not heard
        of yet has the whole time."""
        client = job.graph.client
        if client is not None and not job.cancel_requested:
            self._clients.begin(job.job_id, client.heartbeat_timeout)

    def heard_of_client(self, job_ids: Iterable[JobID]) -> None:
        """That of those jobs lives."""
        self._clients.heard_of(job_ids)

    def has_ended(self, job: ManagedJob) -> None:
        """Its client may go."""
        self._clients.end(job.job_id)

    def stop(self) -> None:
        """No client is missed any more."""
        self._clients.stop()

    def _client_is_lost(self, job_id: JobID) -> None:
        job = self._job(job_id)
        if job is None or job.graph.client is None or job.cancel_requested:
            return
        cause = ExceptionEntry(self._dispatcher.clock.time(), _without(job.graph.client))
        log.warning("job %s: %s", job_id, cause.text)
        self._dispatcher.create_task(
            retry_until_done(
                f"job {job_id}: cannot be cancelled for its lost client yet",
                lambda: self.cancel(job, cause),
            ),
            f"cancel job {job_id} for its lost client",
        )


def _without(client: AttachedClient) -> str:
    return (
        f"its client, {client.name}, is lost: nothing was heard of it for "
        f"{format_duration(client.heartbeat_timeout)} ({CLIENT_HEARTBEAT_TIMEOUT.key}); "
        f"the job is cancelled, because {client.reason}"
    )
