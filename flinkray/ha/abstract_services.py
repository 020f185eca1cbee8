"""Implements the stores of all high availability services."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from concurrent.futures import Executor
from typing import TypeVar

from flinkray.core.ids import JobID
from flinkray.ha.checkpoint_stores import CheckpointIDCounter, CompletedCheckpointStore
from flinkray.ha.directory import Directory, Entries
from flinkray.ha.durable_checkpoint_stores import (
    DurableCheckpointIDCounter,
    DurableCompletedCheckpointStore,
)
from flinkray.ha.durable_stores import (
    CLEAN,
    DIRTY,
    GRAPH,
    DurableJobGraphStore,
    DurableJobResultStore,
)
from flinkray.ha.leadership import LeaderElectionError
from flinkray.ha.services import HighAvailabilityServices
from flinkray.ha.stores import JobEntry, JobGraphStore, JobResultStore, StoreError

RecordT = TypeVar("RecordT", bound=JobEntry)

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
        change.
        """

    @abstractmethod
    def _of_job_master(self, job_id: JobID) -> Directory:
        """Return the cluster's directory for the stores that only the job's leading JobMaster may
        change.
        """

    @abstractmethod
    def _blobs(self) -> Directory: ...

    @abstractmethod
    def _job_entries(self, name: str, suffixes: tuple[str, ...]) -> Entries:
        """Return the entries in subdirectory *name*, which only the Dispatcher changes.

        *suffixes* are the possible ends of the entry names.
        """

    def _dispatcher_fenced(self) -> None:
        """Handle that another process has taken over the stores of this process's Dispatcher."""

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
