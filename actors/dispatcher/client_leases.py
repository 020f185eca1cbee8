"""Whether the clients are there that jobs end with."""

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
    """Lives on its endpoint's main thread, and so does the callback.

    Unlike in :mod:`flinkray.rpc.liveness.heartbeat` each job has a timeout of its own, nobody is
    asked, and a mistake costs a job.
    """

    def __init__(self, endpoint: RpcEndpoint, on_silence: Callable[[JobID], None]) -> None:
        """*on_silence*: nothing was heard of the job's client for the whole timeout; its lease is
        over."""
        self._endpoint = endpoint
        self._on_silence = on_silence
        self._leases: dict[JobID, _Lease] = {}

    def begin(self, job_id: JobID, timeout: float) -> None:
        """The client has *timeout* seconds from now on."""
        self.end(job_id)
        timer = self._endpoint.schedule_deadline(timeout, lambda: self._is_over(job_id))
        self._leases[job_id] = _Lease(timeout, timer)

    def heard_of(self, job_ids: Iterable[JobID]) -> None:
        """Their client lives; jobs that end without a client are none of this."""
        for job_id in job_ids:
            lease = self._leases.get(job_id)
            if lease is not None:
                self.begin(job_id, lease.timeout)

    def end(self, job_id: JobID) -> None:
        """The job needs no client any more; idempotent."""
        lease = self._leases.pop(job_id, None)
        if lease is not None:
            lease.timer.cancel()

    def stop(self) -> None:
        """Nothing is reported any more."""
        for job_id in tuple(self._leases):
            self.end(job_id)

    def _is_over(self, job_id: JobID) -> None:
        del self._leases[job_id]
        self._on_silence(job_id)
