"""What all high availability services have in common: the stores."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from concurrent.futures import Executor
from typing import TypeVar

from flinkray.core.ids import JobID
from flinkray.ha.checkpoint_stores import CheckpointIDCounter, CompletedCheckpointStore
from flinkray.ha.directory import Directory
from flinkray.ha.durable_checkpoint_stores import (
    DurableCheckpointIDCounter,
    DurableCompletedCheckpointStore,
)
from flinkray.ha.durable_stores import DurableJobGraphStore, DurableJobResultStore
from flinkray.ha.leadership import LeaderElectionError
from flinkray.ha.services import HighAvailabilityServices
from flinkray.ha.stores import JobEntry, JobGraphStore, JobResultStore, StoreError

RecordT = TypeVar("RecordT", bound=JobEntry)

JOB_GRAPHS = "job-graphs"
JOB_RESULTS = "job-results"
CHECKPOINT_POINTERS = "checkpoint-pointers"
BLOBS = "blobs"


class AbstractHaServices(HighAvailabilityServices):
    """Stores in directories; who may write to them is for the directories to say.

    Args:
        executor: runs the blocking work on files.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._closed = False

    @abstractmethod
    def _of_dispatcher(self) -> Directory:
        """The cluster's directory, as the Dispatcher that leads may write to it."""

    @abstractmethod
    def _of_job_master(self, job_id: JobID) -> Directory:
        """The same directory, as the JobMaster that leads may write to it."""

    @abstractmethod
    def _blobs(self) -> Directory: ...

    def get_job_graph_store(self, record_type: type[RecordT]) -> JobGraphStore[RecordT]:
        self._check_running()
        directory = self._of_dispatcher().subdirectory(JOB_GRAPHS)
        return DurableJobGraphStore(directory, record_type, self._executor)

    def get_job_result_store(self, record_type: type[RecordT]) -> JobResultStore[RecordT]:
        self._check_running()
        directory = self._of_dispatcher().subdirectory(JOB_RESULTS)
        return DurableJobResultStore(directory, record_type, self._executor)

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
                directory.delete_all()  # with what was being written as somebody died
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
