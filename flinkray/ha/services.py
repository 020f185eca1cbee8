"""Defines the high availability services: elections, and stores for data that outlives a leader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeVar

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha.checkpoint_stores import CheckpointIDCounter, CompletedCheckpointStore
from flinkray.ha.directory import Directory
from flinkray.ha.leadership import LeaderElection, LeaderRetrievalService
from flinkray.ha.stores import JobEntry, JobGraphStore, JobResultStore

RecordT = TypeVar("RecordT", bound=JobEntry)

DISPATCHER_ADDRESS = "Dispatcher/dispatcher"
RESOURCE_MANAGER_ADDRESS = "ResourceManager/resourcemanager"


class HighAvailabilityServices(ABC):
    """Creates elections, retrievers and stores for the components of a cluster.

    Each call creates a new object; a component calls each method once and keeps the object.
    """

    elects_job_masters: ClassVar[bool] = True
    """Whether leaders of jobs are elected. False: retrievers report the defaults that callers
    pass."""

    @abstractmethod
    def get_dispatcher_leader_retriever(self) -> LeaderRetrievalService: ...

    @abstractmethod
    def get_resource_manager_leader_retriever(self) -> LeaderRetrievalService: ...

    @abstractmethod
    def get_job_master_leader_retriever(
        self,
        job_id: JobID,
        default_address: str | None = None,
        default_session_id: LeaderSessionID | None = None,
    ) -> LeaderRetrievalService:
        """Return a retriever of the leading JobMaster of a job.

        The defaults are the address and session that the caller knows. Services that elect ignore
        them; other services (:class:`StandaloneHaServices`) report only them.
        """

    @abstractmethod
    def get_dispatcher_leader_election(self) -> LeaderElection: ...

    @abstractmethod
    def get_resource_manager_leader_election(self) -> LeaderElection: ...

    @abstractmethod
    def get_job_master_leader_election(
        self, job_id: JobID, session_id: LeaderSessionID
    ) -> LeaderElection:
        """Return an election of the job's leader; *session_id* is the session of its first grant.

        The Dispatcher, which starts the JobMasters of a job, gives each of them its own session.
        """

    @abstractmethod
    def get_job_graph_store(self, record_type: type[RecordT]) -> JobGraphStore[RecordT]:
        """Return the store of job graphs; *record_type* is the type of its entries."""

    @abstractmethod
    def get_job_result_store(self, record_type: type[RecordT]) -> JobResultStore[RecordT]:
        """Return the store of job results; *record_type* is the type of its entries."""

    @abstractmethod
    def get_checkpoint_id_counter(self, job_id: JobID, owner: str) -> CheckpointIDCounter:
        """Return the counter of a job's checkpoint ids; *owner* is unique to the using leader."""

    @abstractmethod
    def get_completed_checkpoint_store(self, job_id: JobID, owner: str) -> CompletedCheckpointStore:
        """Return the store of retained checkpoints; *owner* is unique to the using leader."""

    @abstractmethod
    def get_blob_directory(self) -> Directory:
        """Return the blob server's directory, for data that is too large for messages."""

    @abstractmethod
    async def cleanup_job(self, job_id: JobID) -> None:
        """Remove the leader election data of a job that has ended. Can be called again.

        Raises:
            StoreError: the election's service fails.
        """

    @abstractmethod
    async def forget_checkpoints(self, job_id: JobID) -> None:
        """Remove checkpoint pointers and id count of a job that has ended for good.

        The job's last JobMaster may have died before. Can be called again. Raises StoreError.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every election and retrieval; stored data stays. Can be called again."""

    @abstractmethod
    async def close_and_cleanup_all_data(self) -> None:
        """Close, and remove all stored data of exactly this cluster.

        Data that refers to blobs is removed first; if that fails, the blobs are kept.
        """
