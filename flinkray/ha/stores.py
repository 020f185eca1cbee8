"""Defines the stores that outlive a Dispatcher: graphs of accepted jobs, results of ended jobs.

The stores hold any message that has a ``job_id`` (``ha`` does not know the scheduler's types); the
caller names the type when it asks :class:`HighAvailabilityServices` for a store. The types of the
messages, and of all that they hold, are declared with :func:`flinkray.core.schema.stored`.

An entry that cannot be read (of a newer version of flinkray, damaged, of another type) stays
stored, and the other entries can still be read. Reading it raises an
:class:`~flinkray.core.errors.UnreadableRecordError` with the location and the cause.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flinkray.core.errors import FlinkRayError, JobError, UnreadableRecordError
from flinkray.core.ids import JobID


class JobEntry(Protocol):
    """Interface to a message about one job, which a store can hold."""

    @property
    def job_id(self) -> JobID: ...


RecordT = TypeVar("RecordT", bound=JobEntry)


class StoreError(FlinkRayError):
    """A store could not read or write; the text names the entry and the cause."""

    retryable = True


class JobStoreFencedError(StoreError):
    """A later owner has taken over the store: the change has no effect."""

    retryable = False


class JobStoreStateError(JobError):
    """The operation is not possible with the stored entries of the job; see the method that
    raised."""


@dataclass(frozen=True)
class Recovered(Generic[RecordT]):
    """The result of reading all entries of a store.

    ``records``: all readable entries, oldest first. ``unreadable``: why the others cannot be read.
    """

    records: tuple[RecordT, ...]
    unreadable: tuple[UnreadableRecordError, ...]


class JobGraphStore(ABC, Generic[RecordT]):
    """Stores the graphs of the jobs that were accepted and have not ended.

    All methods raise StoreError when the storage fails. Methods that change something raise
    JobStoreFencedError when another store object has taken over after this one.
    """

    @abstractmethod
    async def take_over(self) -> None:
        """Make the caller the owner: later changes of earlier owners raise JobStoreFencedError.
        Call this before graphs are read to work with; otherwise the first change takes over."""

    @abstractmethod
    async def put_job_graph(self, graph: RecordT) -> None:
        """Store or update a graph; durable on return.

        Raises:
            JobStoreStateError: a graph with this id is stored that this store object has neither
                put nor recovered: the graph belongs to another owner.
        """

    @abstractmethod
    async def recover_job_graph(self, job_id: JobID) -> RecordT | None:
        """Return the graph of a job; None: there is none. Raises UnreadableRecordError."""

    @abstractmethod
    async def recover_job_graphs(self) -> Recovered[RecordT]:
        """Return all readable graphs, and the errors of the unreadable ones."""

    @abstractmethod
    async def get_job_ids(self) -> tuple[JobID, ...]:
        """Return the ids of the stored graphs, readable or not, in order of id."""

    @abstractmethod
    async def remove_job_graph(self, job_id: JobID) -> None:
        """Remove a graph; no error if there is none."""


class JobResultStore(ABC, Generic[RecordT]):
    """Stores the results of jobs that have ended for good.

    A result is *dirty* while the job's leftovers may still have to be cleaned up, then *clean*. All
    methods raise StoreError when the storage fails. Methods that change something raise
    JobStoreFencedError when another store object has taken over after this one.
    """

    @abstractmethod
    async def take_over(self) -> None:
        """Make the caller the owner: later changes of earlier owners raise JobStoreFencedError.
        Call this before results are read to work with; otherwise the first change takes over."""

    @abstractmethod
    async def create_dirty_result(self, result: RecordT) -> None:
        """Store a result; durable on return.

        Raises:
            JobStoreStateError: the job has a result already, dirty or clean.
        """

    @abstractmethod
    async def mark_result_as_clean(self, job_id: JobID) -> None:
        """Mark the result as clean, because the job's leftovers are removed.

        No error if it is clean already.

        Raises:
            JobStoreStateError: the job has no result, or its content is lost.
        """

    @abstractmethod
    async def remove_result(self, job_id: JobID) -> None:
        """Remove the result of a job; no error if there is none."""

    @abstractmethod
    async def has_dirty_result(self, job_id: JobID) -> bool: ...

    @abstractmethod
    async def has_clean_result(self, job_id: JobID) -> bool: ...

    async def has_result(self, job_id: JobID) -> bool:
        """Return whether the job has a result, dirty or clean."""
        return await self.has_dirty_result(job_id) or await self.has_clean_result(job_id)

    @abstractmethod
    async def get_result(self, job_id: JobID) -> RecordT | None:
        """Return the job's result, dirty or clean; None if it has none. Raises
        UnreadableRecordError."""

    @abstractmethod
    async def get_dirty_results(self) -> Recovered[RecordT]:
        """Return the results of jobs whose leftovers still have to be cleaned up."""

    @abstractmethod
    async def get_clean_results(self) -> Recovered[RecordT]:
        """Return the results of jobs whose leftovers are removed: the history of ended jobs."""
