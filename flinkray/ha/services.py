"""Defines the high availability services, and implements what all of them share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from typing import ClassVar, TypeVar

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha.checkpoint_stores import (
    CheckpointIDCounter,
    CompletedCheckpointStore,
    DurableCheckpointIDCounter,
    DurableCompletedCheckpointStore,
)
from flinkray.ha.directory import Directory, Entries
from flinkray.ha.durable_stores import (
    CLEAN,
    DIRTY,
    GRAPH,
    DurableJobGraphStore,
    DurableJobResultStore,
)
from flinkray.ha.epoch_directory import FencedDirectory
from flinkray.ha.leader_election import LeaderElection, LeaderElectionError, LeaderRetrievalService
from flinkray.ha.stores import JobEntry, JobGraphStore, JobResultStore, StoreError

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
        """Return the counter of a job's checkpoint ids.

        *owner*: a name of the calling leader that no earlier leader of the job has used.
        """

    @abstractmethod
    def get_completed_checkpoint_store(self, job_id: JobID, owner: str) -> CompletedCheckpointStore:
        """Return the store of pointers to a job's retained checkpoints.

        *owner*: a name of the calling leader that no earlier leader of the job has used.
        """

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


JOB_GRAPHS = "job-graphs"
JOB_RESULTS = "job-results"
CHECKPOINT_POINTERS = "checkpoint-pointers"
BLOBS = "blobs"


class AbstractHaServices(HighAvailabilityServices):
    """Base of all high availability services: keeps the stores in directories.

    Subclasses provide the directories, which decide who may write.

    Args:
        executor: runs the blocking work on files.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._closed = False

    @abstractmethod
    def _of_dispatcher(self) -> Directory:
        """Return the cluster's directory for the stores that only the leading Dispatcher may
        change."""

    @abstractmethod
    def _of_job_master(self, job_id: JobID) -> Directory:
        """Return the cluster's directory for the stores that only the job's leading JobMaster may
        change."""

    @abstractmethod
    def _blobs(self) -> Directory: ...

    @abstractmethod
    def _job_entries(self, name: str, suffixes: tuple[str, ...]) -> Entries:
        """Return an object that reads and writes the entries of subdirectory *name* whose names end
        with one of *suffixes*. Its writes fail after another process's Dispatcher has taken
        over."""

    def _dispatcher_fenced(self) -> None:
        """Called when another process has taken over the stores of this process's Dispatcher. Does
        nothing here; a subclass may revoke the Dispatcher's leadership."""

    def get_job_graph_store(self, record_type: type[RecordT]) -> JobGraphStore[RecordT]:
        self._check_running()
        entries = self._job_entries(JOB_GRAPHS, (GRAPH,))
        return DurableJobGraphStore(entries, record_type, self._executor, self._dispatcher_fenced)

    def get_job_result_store(self, record_type: type[RecordT]) -> JobResultStore[RecordT]:
        self._check_running()
        entries = self._job_entries(JOB_RESULTS, (DIRTY, CLEAN))
        return DurableJobResultStore(entries, record_type, self._executor, self._dispatcher_fenced)

    def get_checkpoint_id_counter(self, job_id: JobID, owner: str) -> CheckpointIDCounter:
        self._check_running()
        directory = _checkpoints(self._of_job_master(job_id), job_id)
        return DurableCheckpointIDCounter(directory, job_id, owner, self._executor)

    def get_completed_checkpoint_store(self, job_id: JobID, owner: str) -> CompletedCheckpointStore:
        self._check_running()
        directory = _checkpoints(self._of_job_master(job_id), job_id)
        return DurableCompletedCheckpointStore(directory, job_id, owner, self._executor)

    def get_blob_directory(self) -> Directory:
        self._check_running()
        return self._blobs()

    async def forget_checkpoints(self, job_id: JobID) -> None:
        self._check_running()
        directory = _checkpoints(self._of_dispatcher(), job_id)

        def forget() -> None:
            try:
                for name in directory.names():
                    directory.delete(name)
                directory.delete_all()  # also what was being written when a process died
            except OSError as error:
                raise StoreError(f"cannot delete {directory.location()}: {error}") from error

        await asyncio.get_running_loop().run_in_executor(self._executor, forget)

    async def close(self) -> None:
        self._closed = True

    def _check_running(self) -> None:
        if self._closed:
            raise LeaderElectionError("the high availability services are closed")


def _checkpoints(cluster: Directory, job_id: JobID) -> Directory:
    return cluster.subdirectory(CHECKPOINT_POINTERS).subdirectory(job_id.hex())


class AbstractNonHaServices(AbstractHaServices):
    """Base of services without a coordination service: keeps the stores in one directory.

    Epochs distinguish the owners of the stores.

    Args:
        storage: the cluster's directory; other contents of the directory are not touched.
        executor: runs the blocking work on files.
    """

    def __init__(self, storage: Directory, executor: Executor) -> None:
        super().__init__(executor)
        self._storage = storage

    def _of_dispatcher(self) -> Directory:
        return self._storage

    def _of_job_master(self, job_id: JobID) -> Directory:
        return self._storage

    def _job_entries(self, name: str, suffixes: tuple[str, ...]) -> Entries:
        directory = self._storage.subdirectory(name)
        return FencedDirectory(directory, name, lambda file: file.endswith(suffixes))

    def _blobs(self) -> Directory:
        return self._storage.subdirectory(BLOBS)

    async def cleanup_job(self, job_id: JobID) -> None:
        """Do nothing, because the elections leave no data behind."""

    async def close_and_cleanup_all_data(self) -> None:
        await self.close()
        for name in (
            JOB_GRAPHS,
            JOB_RESULTS,
            CHECKPOINT_POINTERS,
            BLOBS,
        ):  # pointers before their targets
            directory = self._storage.subdirectory(name)
            await asyncio.get_running_loop().run_in_executor(self._executor, directory.delete_all)
