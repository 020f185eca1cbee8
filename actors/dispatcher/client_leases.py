"""Whether the clients are there that jobs end with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flinkray.core.ids import JobID
from flinkray.rpc import RpcEndpoint, TimerHandle

_LOOKS = 4
"""A timeout is counted in so many looks: an endpoint that stood still for long, and whose own mail
waits to be read, has missed one of them only."""


@dataclass(slots=True)
class _Lease:
    timeout: float
    timer: TimerHandle
    silent_looks: int = 0


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
        self._leases[job_id] = _Lease(timeout, self._next_look(job_id, timeout))

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

    def _next_look(self, job_id: JobID, timeout: float) -> TimerHandle:
        return self._endpoint.schedule_run_async(timeout / _LOOKS, lambda: self._look(job_id))

    def _look(self, job_id: JobID) -> None:
        lease = self._leases[job_id]
        lease.silent_looks += 1
        if lease.silent_looks < _LOOKS:
            lease.timer = self._next_look(job_id, lease.timeout)
        else:
            self.end(job_id)
            self._on_silence(job_id)
