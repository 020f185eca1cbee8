"""What services without a coordination service of their own have in common: the stores."""

from __future__ import annotations

import asyncio
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


class AbstractNonHaServices(HighAvailabilityServices):
    """Stores in one directory of the cluster's own.

    Args:
        storage: the cluster's directory; what else lies in it is not touched.
        executor: runs the blocking work on files.
    """

    def __init__(self, storage: Directory, executor: Executor) -> None:
        self._storage = storage
        self._executor = executor
        self._closed = False

    def get_job_graph_store(self, record_type: type[RecordT]) -> JobGraphStore[RecordT]:
        self._check_running()
        directory = self._storage.subdirectory(JOB_GRAPHS)
        return DurableJobGraphStore(directory, record_type, self._executor)

    def get_job_result_store(self, record_type: type[RecordT]) -> JobResultStore[RecordT]:
        self._check_running()
        directory = self._storage.subdirectory(JOB_RESULTS)
        return DurableJobResultStore(directory, record_type, self._executor)

    def get_checkpoint_id_counter(self, job_id: JobID, owner: str) -> CheckpointIDCounter:
        directory = self._checkpoints_of(job_id)
        return DurableCheckpointIDCounter(directory, job_id, owner, self._executor)

    def get_completed_checkpoint_store(self, job_id: JobID, owner: str) -> CompletedCheckpointStore:
        directory = self._checkpoints_of(job_id)
        return DurableCompletedCheckpointStore(directory, job_id, owner, self._executor)

    def _checkpoints_of(self, job_id: JobID) -> Directory:
        self._check_running()
        return self._storage.subdirectory(CHECKPOINT_POINTERS).subdirectory(job_id.hex())

    def get_blob_directory(self) -> Directory:
        self._check_running()
        return self._storage.subdirectory(BLOBS)

    async def cleanup_job(self, job_id: JobID) -> None:
        """Nothing: no election leaves anything behind."""

    async def forget_checkpoints(self, job_id: JobID) -> None:
        directory = self._checkpoints_of(job_id)

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

    async def close_and_cleanup_all_data(self) -> None:
        await self.close()
        for name in (
            JOB_GRAPHS,
            JOB_RESULTS,
            CHECKPOINT_POINTERS,
            BLOBS,
        ):  # pointers before what they point to
            directory = self._storage.subdirectory(name)
            await asyncio.get_running_loop().run_in_executor(self._executor, directory.delete_all)

    def _check_running(self) -> None:
        if self._closed:
            raise LeaderElectionError("the high availability services are closed")
