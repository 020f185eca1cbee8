"""Cancels jobs on a client's request, or because the lease of an attached client has run out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.managed_job import ManagedJob
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways.messages import StoredJob
from flinkray.core.client_options import CLIENT_HEARTBEAT_TIMEOUT
from flinkray.core.durations import format_duration
from flinkray.core.ids import JobID
from flinkray.ha import JobGraphStore, StoreError
from flinkray.rpc import RpcEndpoint, TimerHandle
from flinkray.scheduler.graph.job_graph import AttachedClient
from flinkray.scheduler.reports.job_info import ExceptionEntry

log = logging.getLogger(__name__)


class JobCancelling:
    """Cancels jobs. Lives on the Dispatcher's main thread.

    A cancellation with its cause is stored before it takes effect. Then every JobMaster of the job
    learns of it: the present JobMaster at once, later ones when they register.
    """

    def __init__(
        self,
        dispatcher: RpcEndpoint,
        graphs: JobGraphStore[StoredJob],
        job_masters: JobMasterSupervision,
        job: Callable[[JobID], ManagedJob | None],
    ) -> None:
        """Create the object that cancels the Dispatcher's jobs.
        *job* is a function that returns a job by its id. It returns None for a job that is unknown
        or already cleaned up.
        """
        self._dispatcher = dispatcher
        self._graphs = graphs
        self._job_masters = job_masters
        self._job = job
        self._withdrawing: dict[JobID, asyncio.Task[None]] = {}
        self._clients = ClientLeases(dispatcher, self._client_is_lost)

    async def cancel(self, job: ManagedJob, cause: ExceptionEntry | None = None) -> None:
        """Store the cancellation, and order the JobMaster to cancel the job.
        Returns before the job has ended.

        *cause*: the reason, if no client has requested the cancellation. Raises StoreError if the
        cancellation could not be stored; the job then continues.
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
        """Begin to store the job as not cancelled, because storing its cancellation has failed and
        the client was told so. The failed write may have taken effect all the same, and then the
        next Dispatcher would cancel the job."""
        if job.job_id not in self._withdrawing:
            name = f"{job.text} is not cancelled"
            work = retry_until_done(f"{name}: that is not stored yet", lambda: self._withdraw(job))
            task = self._withdrawing[job.job_id] = self._dispatcher.create_task(work, name)
            task.add_done_callback(lambda _: self._withdrawing.pop(job.job_id))

    async def _withdraw(self, job: ManagedJob) -> None:
        async with job.storing:
            if not job.cancel_requested and job.outcome is None:
                await self._graphs.put_job_graph(job.stored())

    def await_client(self, job: ManagedJob) -> None:
        """Begin the lease of the job's client, if the job ends with its client.
        The job is cancelled if the client sends no heartbeat for its timeout, counted from this
        call.
        """
        client = job.graph.client
        if client is not None and not job.cancel_requested:
            self._clients.begin(job.job_id, client.heartbeat_timeout)

    def heard_of_client(self, job_ids: Iterable[JobID]) -> None:
        """Renew the leases of these jobs, because their client has sent a heartbeat."""
        self._clients.heard_of(job_ids)

    def has_ended(self, job: ManagedJob) -> None:
        """End the lease of the job's client, because the job has ended."""
        self._clients.end(job.job_id)

    def stop(self) -> None:
        """End the leases of all clients: no job is cancelled because of a lost client any more."""
        self._clients.stop()

    def _client_is_lost(self, job_id: JobID) -> None:
        job = self._job(job_id)
        if job is None or job.graph.client is None or job.cancel_requested:
            return
        self.cancel_later(job, _without(job.graph.client))

    def cancel_later(self, job: ManagedJob, why: str) -> None:
        """Begin to cancel a job, although no client has requested it, until it is stored."""
        cause = ExceptionEntry(self._dispatcher.clock.time(), why)
        log.warning("%s: %s", job.text, why)
        self._dispatcher.create_task(
            retry_until_done(
                f"{job.text}: cannot be cancelled yet ({why})", lambda: self.cancel(job, cause)
            ),
            f"cancel job {job.job_id}: {why}",
        )


def _without(client: AttachedClient) -> str:
    return (
        f"its client, {client.name}, is lost: nothing was heard of it for "
        f"{format_duration(client.heartbeat_timeout)} ({CLIENT_HEARTBEAT_TIMEOUT.key}); "
        f"the job is cancelled, because {client.reason}"
    )


@dataclass(frozen=True, slots=True)
class _Lease:
    timeout: float
    timer: TimerHandle


class ClientLeases:
    """One lease for each job that is cancelled when its client is lost. A lease runs out if the
    client sends no heartbeat for the job's timeout.

    All methods and the callback run on the endpoint's main thread.
    """

    def __init__(self, endpoint: RpcEndpoint, on_silence: Callable[[JobID], None]) -> None:
        """Create the collection, without leases. *on_silence* is called for a lease that has run
        out."""
        self._endpoint = endpoint
        self._on_silence = on_silence
        self._leases: dict[JobID, _Lease] = {}

    def begin(self, job_id: JobID, timeout: float) -> None:
        """Begin or renew a lease: the client has *timeout* seconds from now on."""
        self.end(job_id)
        timer = self._endpoint.schedule_deadline(timeout, lambda: self._is_over(job_id))
        self._leases[job_id] = _Lease(timeout, timer)

    def heard_of(self, job_ids: Iterable[JobID]) -> None:
        """Renew the leases of these jobs, because their client has sent a heartbeat.
        Jobs without a lease are ignored.
        """
        for job_id in job_ids:
            lease = self._leases.get(job_id)
            if lease is not None:
                self.begin(job_id, lease.timeout)

    def end(self, job_id: JobID) -> None:
        """End the job's lease, if it has one: *on_silence* is not called for this job any more."""
        lease = self._leases.pop(job_id, None)
        if lease is not None:
            lease.timer.cancel()

    def stop(self) -> None:
        """End all leases. *on_silence* is not called any more."""
        for job_id in tuple(self._leases):
            self.end(job_id)

    def _is_over(self, job_id: JobID) -> None:
        del self._leases[job_id]
        self._on_silence(job_id)
