"""Inputs and outputs of tasks that are stored in files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from flinkray.actors.gateways.task_process import ResultPartitionNotFoundError
from flinkray.core.ids import JobID, ResultPartitionID
from flinkray.file_results import (
    FileResultLostError,
    ResultDirectory,
    ResultWriter,
    RowGroupSplit,
    partition_location,
    share_of,
    whole_location,
)
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    InputInformation,
    PartitionLocations,
    TaskExecutionState,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class FileInput:
    """One task's share of the rows of an input in files.

    The tasks that read the same files divide them by row groups: each row is read by one task. The
    division follows no key: any task may read any row.
    """

    def __init__(
        self,
        storage_dir: str,
        job_id: JobID,
        information: InputInformation,
        locations: PartitionLocations,
        subtask_index: int,
        parallelism: int,
    ) -> None:
        producers, pattern = information.producer_parallelism, information.pattern
        group = distribution.group_of_consumer(pattern, producers, parallelism, subtask_index)
        self._partitions = {
            location: partition
            for partition in map(
                locations.partition_id,
                distribution.partitions_of_group(pattern, producers, parallelism, group),
            )
            if (location := _location(storage_dir, job_id, information, locations, partition))
        }
        """Directory -> a partition that is stored there.
        Several partitions may be in one directory.
        """
        self._reader = distribution.subpartition_of(pattern, producers, parallelism, subtask_index)
        self._readers = len(distribution.consumers_of_group(pattern, producers, parallelism, group))

    def share(self) -> list[RowGroupSplit]:
        """Return the row groups that this task reads. Blocks.

        Raises:
            ResultPartitionNotFoundError: files are gone. Their producer will run again.
            ResultSchemaError: the producer's tasks have written different columns.
        """
        with self.telling_what_is_lost():
            directories = [ResultDirectory(location) for location in self._partitions]
            return share_of(directories, self._reader, self._readers)

    @contextmanager
    def telling_what_is_lost(self) -> Iterator[None]:
        """Context manager: if a file is found missing inside the block, raise
        ResultPartitionNotFoundError, which names the partition that must be produced again.
        """
        try:
            yield
        except FileResultLostError as error:
            partition = self._partitions.get(error.location)
            if partition is None:  # of another input of the task
                raise
            raise ResultPartitionNotFoundError(partition, str(error)) from error


class FileOutput:
    """The partition of a result that this task writes to files."""

    def __init__(self, endpoint: RpcEndpoint, location: str, task: str) -> None:
        """Create the output of an attempt; *task* is the name of the attempt."""
        self._endpoint = endpoint
        self._task = task
        self._location = location
        self._opened: ResultWriter | None = None
        self._turn = asyncio.Lock()
        self._is_over = False

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Add rows in the thread of the task, which is the only writer. Blocks.

        Raises:
            ResultSchemaError: the columns differ from earlier ones, or two have one name.
        """
        self._writer().write(data)

    async def finish(self) -> None:
        """Make the result readable. Called on the process's main thread."""
        await self._run(ResultWriter.finish)
        self._is_over = True

    async def abandon(self) -> None:
        """Delete the result unless it is finished.
        Called on the main thread. Files that cannot be deleted are deleted with the job.
        """
        if not self._is_over:
            self._is_over = True
            try:
                await self._run(ResultWriter.abandon)
            except OSError as error:
                logger.warning("cannot delete %s before the job ends: %s", self._location, error)

    def ended(self, state: TaskExecutionState) -> None:
        """Delete the result unless the attempt is FINISHED. Called on the main thread, once."""
        if state.state is not ExecutionState.FINISHED:
            self._endpoint.create_task(self.abandon(), "delete what is left of a result")

    async def _run(self, function: Callable[[ResultWriter], T]) -> T:
        async with self._turn:  # a file has one writer at a time
            return await self._endpoint.rpc_service.run_blocking(lambda: function(self._writer()))

    def _writer(self) -> ResultWriter:
        if self._opened is None:
            self._opened = ResultWriter(ResultDirectory(self._location), task=self._task)
        return self._opened


def _location(
    storage_dir: str,
    job_id: JobID,
    information: InputInformation,
    locations: PartitionLocations,
    partition: ResultPartitionID,
) -> str:
    if not information.is_written_whole:
        return partition_location(storage_dir, job_id, partition)
    return whole_location(
        storage_dir,
        job_id,
        partition.graph_id,
        partition.data_set_id,
        locations.coordinator_attempt,
    )
