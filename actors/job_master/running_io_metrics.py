"""Requests the I/O metrics of a job's running tasks, whenever the job's details are requested."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionAttemptID, JobID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.shared.io_metrics import IOMetrics, TaskIOMetrics

log = logging.getLogger(__name__)


class RunningIOMetrics:
    """Asks TaskExecutors for the I/O metrics of running tasks.
    Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        job_id: JobID,
        task_executors: TaskExecutorConnections,
    ) -> None:
        self._job_master = job_master
        self._job_id = job_id
        self._task_executors = task_executors

    async def of(self, places: Iterable[ResourceID]) -> dict[ExecutionAttemptID, IOMetrics]:
        """Ask each of these TaskExecutors once for the I/O metrics of its stream tasks, and return
        all of them. TaskExecutors that do not answer in time are left out."""
        answers = await asyncio.gather(*map(self._ask, places))
        return {one.attempt_id: one.metrics for answer in answers for one in answer}

    async def _ask(self, resource_id: ResourceID) -> tuple[TaskIOMetrics, ...]:
        try:
            executor = self._task_executors.get(resource_id)
            return await executor.request_io_metrics(self._job_id, self._job_master.fencing_token)
        except FlinkRayError as error:
            log.info("%s does not return the I/O metrics of its tasks: %s", resource_id, error)
            return ()
