"""The jobs of a TaskExecutor, each with its services and its connection to the JobMaster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import JobID

S = TypeVar("S")
C = TypeVar("C")


class Job(Generic[S, C]):
    """Entry of a job in a JobTable: services, and a connection while a JobMaster is registered."""

    def __init__(self, job_id: JobID, services: S, close_services: Callable[[S], None]) -> None:
        self.job_id = job_id
        self._services = services
        self._close_services = close_services
        self._connection: C | None = None
        self._is_closed = False

    @property
    def services(self) -> S:
        """The services of the job. They exist until :meth:`close`.

        Raises:
            IllegalTransitionError: the job is closed. All other methods raise it then, too.
        """
        self._require_open("use the services")
        return self._services

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> C:
        """The connection to the JobMaster. Raises IllegalTransitionError if not connected."""
        self._require_open("use the connection")
        if self._connection is None:
            raise self._illegal("use the connection", "it is not connected")
        return self._connection

    def connect(self, connection: C) -> None:
        """Set the connection after the JobMaster has accepted the registration.

        Raises:
            IllegalTransitionError: the job is already connected.
        """
        self._require_open("connect")
        if self._connection is not None:
            raise self._illegal("connect", "it is connected already")
        self._connection = connection

    def disconnect(self) -> C:
        """Remove the connection and return it.

        Raises:
            IllegalTransitionError: the job is not connected.
        """
        self._require_open("disconnect")
        if self._connection is None:
            raise self._illegal("disconnect", "it is not connected")
        connection, self._connection = self._connection, None
        return connection

    def close(self) -> None:
        """Close the services of a job without a connection. Idempotent."""
        if self._connection is not None:
            raise self._illegal("close", "it is still connected")
        if not self._is_closed:
            self._is_closed = True
            self._close_services(self._services)

    def _require_open(self, wanted: str) -> None:
        if self._is_closed:
            raise self._illegal(wanted, "it is closed")

    def _illegal(self, wanted: str, why: str) -> IllegalTransitionError:
        return IllegalTransitionError(f"job {self.job_id} cannot {wanted} here: {why}")


class JobTable(Generic[S, C]):
    """The jobs of a TaskExecutor, one entry per job."""

    def __init__(self, close_services: Callable[[S], None]) -> None:
        """Create a table without jobs.
        *close_services* is called once for each entry, when it is closed.
        """
        self._close_services = close_services
        self._jobs: dict[JobID, Job[S, C]] = {}

    def get(self, job_id: JobID) -> Job[S, C] | None:
        return self._jobs.get(job_id)

    def get_or_create(self, job_id: JobID, new_services: Callable[[], S]) -> Job[S, C]:
        """Return the entry of the job. *new_services* is called if there was none."""
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = Job(job_id, new_services(), self._close_services)
        return job

    def remove(self, job_id: JobID) -> None:
        """Close and remove an entry without a connection. Idempotent.

        Raises:
            IllegalTransitionError: the job is still connected.
        """
        job = self._jobs.get(job_id)
        if job is not None:
            job.close()
            del self._jobs[job_id]

    def close(self) -> None:
        """Disconnect and close the entries of all jobs."""
        for job in tuple(self._jobs.values()):
            if job.is_connected:
                job.disconnect()
            self.remove(job.job_id)

    def __iter__(self) -> Iterator[Job[S, C]]:
        """Iterate over the jobs, oldest first. Entries may be removed meanwhile."""
        return iter(tuple(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)
