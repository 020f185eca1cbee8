"""What services without a coordination service of their own have in common."""

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
from flinkray.ha.directory import Directory


class AbstractNonHaServices(AbstractHaServices):
    """Stores in one directory of the cluster's own.

    Args:
        storage: the cluster's directory; what else lies in it is not touched.
        executor: runs the blocking work on files.
    """

    def __init__(self, storage: Directory, executor: Executor) -> None:
        super().__init__(executor)
        self._storage = storage

    def _of_dispatcher(self) -> Directory:
        return self._storage

    def _of_job_master(self, job_id: JobID) -> Directory:
        return self._storage

    def _blobs(self) -> Directory:
        return self._storage.subdirectory(BLOBS)

    async def cleanup_job(self, job_id: JobID) -> None:
        """Nothing: no election leaves anything behind."""

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
