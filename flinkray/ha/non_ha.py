"""Implements the parts of high availability services that need no coordination service."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from flinkray.core.ids import JobID
from flinkray.ha.abstract_services import (
    BLOBS,
    CHECKPOINT_POINTERS,
    JOB_GRAPHS,
    JOB_RESULTS,
    AbstractHaServices,
)
from flinkray.ha.directory import Directory, Entries
from flinkray.ha.fenced_directory import FencedDirectory


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
