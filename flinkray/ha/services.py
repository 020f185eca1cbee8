"""High availability services: who leads, and what outlives a leader."""

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
    """Hands out elections, retrievers and stores.

    Each call makes a new object; a component asks once for each and keeps it.
    """

    elects_job_masters: ClassVar[bool] = True
    """Whether the leader of a job is elected; False: whoever asks is told what it knew."""

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
        """Follow the JobMaster of a job.

        The defaults are what the asker was told of the master; services that elect ignore them.
        Those that do not (:class:`StandaloneHaServices`) have nothing else to tell.
        """

    @abstractmethod
    def get_dispatcher_leader_election(self) -> LeaderElection: ...

    @abstractmethod
    def get_resource_manager_leader_election(self) -> LeaderElection: ...

    @abstractmethod
    def get_job_master_leader_election(
        self, job_id: JobID, session_id: LeaderSessionID
    ) -> LeaderElection:
        """*session_id* is that of the first grant: the Dispatcher, which starts the JobMasters of a
        job, gives each one its own."""

    @abstractmethod
    def get_job_graph_store(self, record_type: type[RecordT]) -> JobGraphStore[RecordT]:
        """The store of job graphs; *record_type* is the type of its entries."""

    @abstractmethod
    def get_job_result_store(self, record_type: type[RecordT]) -> JobResultStore[RecordT]:
        """The store of job results; *record_type* is the type of its entries."""

    @abstractmethod
    def get_checkpoint_id_counter(self, job_id: JobID, owner: str) -> CheckpointIDCounter:
        """The ids of a job's checkpoints; *owner* names the leader whose the counter is, and
        nobody else."""

    @abstractmethod
    def get_completed_checkpoint_store(self, job_id: JobID, owner: str) -> CompletedCheckpointStore:
        """The retained checkpoints of a job; *owner* as above."""

    @abstractmethod
    def get_blob_directory(self) -> Directory:
        """Where the blob server keeps what is too large for a message."""

    @abstractmethod
    async def cleanup_job(self, job_id: JobID) -> None:
        """Remove what leader election keeps for a job that has ended.  Idempotent.

        Raises:
            StoreError: the election's service fails.
        """

    @abstractmethod
    async def forget_checkpoints(self, job_id: JobID) -> None:
        """Remove the pointers to checkpoints of a job that has ended for good, and the count of
        their ids: its last JobMaster may have died before it did so.  Idempotent.

        Raises:
            StoreError: the storage fails.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every election and retrieval; stored data stay.  Idempotent."""

    @abstractmethod
    async def close_and_cleanup_all_data(self) -> None:
        """Close, and remove all stored data of exactly this cluster.

        What refers to blobs goes first; if that fails, the blobs are kept.
        """
