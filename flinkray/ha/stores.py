"""What must outlive a Dispatcher: the graphs of accepted jobs and the results of ended ones.

The stores hold any message that has a ``job_id`` (``ha`` does not know the scheduler's types); the
caller names the type when it asks :class:`HighAvailabilityServices` for a store.

Their types are declared with :func:`flinkray.core.schema.stored`, and so are those of all that they
hold.

An entry that cannot be read (of a newer version of flinkray, damaged, of another type) stays where
it is, and keeps no other from being read.  Whoever asks for it gets an
:class:`~flinkray.core.errors.UnreadableRecordError`, which says where it lies and what is wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flinkray.core.errors import FlinkRayError, JobError, UnreadableRecordError
from flinkray.core.ids import JobID


class JobEntry(Protocol):
    """A message about one job."""

    @property
    def job_id(self) -> JobID: ...


RecordT = TypeVar("RecordT", bound=JobEntry)


class StoreError(FlinkRayError):
    """A store could not read or write; the text names the entry and the cause."""

    retryable = True


class JobStoreStateError(JobError):
    """The operation does not fit what the store holds for the job (see the method that raised)."""


@dataclass(frozen=True)
class Recovered(Generic[RecordT]):
    """All readable entries of a store, oldest first, and why the others cannot be read."""

    records: tuple[RecordT, ...]
    unreadable: tuple[UnreadableRecordError, ...]


class JobGraphStore(ABC, Generic[RecordT]):
    """The graphs of the jobs that were accepted and have not ended.

    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def put_job_graph(self, graph: RecordT) -> None:
        """Store or update; durable on return.

        Raises:
            JobStoreStateError: a graph of that id is stored that this store object neither put nor
                recovered: it belongs to somebody else.
        """

    @abstractmethod
    async def recover_job_graph(self, job_id: JobID) -> RecordT | None:
        """The graph, or None.  Raises UnreadableRecordError."""

    @abstractmethod
    async def recover_job_graphs(self) -> Recovered[RecordT]:
        """All graphs; those that cannot be read do not keep the others from being recovered."""

    @abstractmethod
    async def get_job_ids(self) -> tuple[JobID, ...]:
        """Ids of the stored graphs, readable or not, in order of id."""

    @abstractmethod
    async def remove_job_graph(self, job_id: JobID) -> None:
        """Forget a graph; removing what is not there is fine."""


class JobResultStore(ABC, Generic[RecordT]):
    """The results of jobs that have ended for good.

    A result is *dirty* while the job's leftovers may still have to be cleaned up, then *clean*.
    All methods raise StoreError when the storage fails.
    """

    @abstractmethod
    async def create_dirty_result(self, result: RecordT) -> None:
        """Store a result; durable on return.

        Raises:
            JobStoreStateError: the job has a result already, dirty or clean.
        """

    @abstractmethod
    async def mark_result_as_clean(self, job_id: JobID) -> None:
        """The job's leftovers are gone; a second time is fine.

        Raises:
            JobStoreStateError: the job has no result, or its content is lost.
        """

    @abstractmethod
    async def remove_result(self, job_id: JobID) -> None:
        """Forget a job that has ended; removing what is not there is fine."""

    @abstractmethod
    async def has_dirty_result(self, job_id: JobID) -> bool: ...

    @abstractmethod
    async def has_clean_result(self, job_id: JobID) -> bool: ...

    async def has_result(self, job_id: JobID) -> bool:
        """Dirty or clean."""
        return await self.has_dirty_result(job_id) or await self.has_clean_result(job_id)

    @abstractmethod
    async def get_result(self, job_id: JobID) -> RecordT | None:
        """The result, dirty or clean, or None.  Raises UnreadableRecordError."""

    @abstractmethod
    async def get_dirty_results(self) -> Recovered[RecordT]:
        """Results of jobs that still need cleaning up."""

    @abstractmethod
    async def get_clean_results(self) -> Recovered[RecordT]:
        """Results of jobs that need nothing any more: the history."""
