"""The common part of services that have no coordination service."""

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
    """Keeps the stores in one directory of the cluster; epochs tell the owners apart.

    Args:
        storage: the cluster's directory; other contents of it are not touched.
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
        """Do nothing, as no election leaves data behind."""

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
