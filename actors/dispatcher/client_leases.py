"""Leases of clients of attached jobs, by which the Dispatcher notices that a client is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flinkray.core.ids import JobID
from flinkray.rpc import RpcEndpoint, TimerHandle


@dataclass(frozen=True, slots=True)
class _Lease:
    timeout: float
    timer: TimerHandle


class ClientLeases:
    """One lease for each job that ends with its client.
    A lease without news of the client runs out.

    All methods and the callback run on the endpoint's main thread. Unlike in
    :mod:`flinkray.rpc.liveness.heartbeat`, each job has its own timeout, the client is not asked
    for heartbeats, and a wrong timeout cancels a job.
    """

    def __init__(self, endpoint: RpcEndpoint, on_silence: Callable[[JobID], None]) -> None:
        """Create the collection of leases, without leases.
        *on_silence* is called when a job's client was silent for the whole timeout. The lease has
        ended then.
        """
        self._endpoint = endpoint
        self._on_silence = on_silence
        self._leases: dict[JobID, _Lease] = {}

    def begin(self, job_id: JobID, timeout: float) -> None:
        """Begin or renew a lease: the client has *timeout* seconds from now on."""
        self.end(job_id)
        timer = self._endpoint.schedule_deadline(timeout, lambda: self._is_over(job_id))
        self._leases[job_id] = _Lease(timeout, timer)

    def heard_of(self, job_ids: Iterable[JobID]) -> None:
        """Renew the leases of these jobs, because their client has sent news.
        Jobs without a lease are ignored.
        """
        for job_id in job_ids:
            lease = self._leases.get(job_id)
            if lease is not None:
                self.begin(job_id, lease.timeout)

    def end(self, job_id: JobID) -> None:
        """End the lease, because the job does not end with its client any more. Idempotent."""
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
