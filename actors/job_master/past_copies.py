"""The copies that past JobMasters of a job have left at TaskExecutors (:mod:`.kept_copy`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.actors.job_master.past_pools import Left, age_of, together
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes, TaskExecutorReport

log = logging.getLogger(__name__)

_TASK_EXECUTORS = "TaskExecutor-"
"""Prefix of the process names of TaskExecutors."""


class PastCopies:
    """Reads the copies that past JobMasters have left at TaskExecutors.
    Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
    ) -> None:
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors

    async def places(self) -> dict[ResourceID, str]:
        """Return the addresses of all TaskExecutors of the cluster.
        Used if it is unknown which TaskExecutors have slots of the job.
        """
        names = await self._job_master.rpc_service.process_names(_TASK_EXECUTORS)
        return {ResourceID(name): f"{name}/taskexecutor" for name in names}

    async def left(
        self, reports: Iterable[TaskExecutorReport], notes: JobNotes | None
    ) -> Left | None:
        """Read and merge the copies of all TaskExecutors that have reported a copy.

        Args:
            notes: the notes that the job's coordinator has; None if there are none. A copy does not
                count if its notes are older, or if the sources were restored since.

        Returns:
            The contents of the copies. None if no copy counts, or if a copy cannot be read.
        """
        with_notes = [report for report in reports if report.notes is not None]
        try:
            found = await asyncio.gather(*map(self._left_at, with_notes))
        except FlinkRayError as error:  # its copy may be the latest
            log.warning("%s: a TaskExecutor hands over nothing: %s", self._graph.text, error)
            return None
        left = together(found)
        if left.notes is None or notes is None:
            return left if left.notes is not None else None
        is_of_same = (left.notes.graph_id, left.notes.restores) == (notes.graph_id, notes.restores)
        return left if is_of_same and age_of(left) >= age_of(Left(notes=notes)) else None

    async def _left_at(self, report: TaskExecutorReport) -> Left:
        executor = self._task_executors.get(report.location.resource_id)
        finished: list[FinishedTask] = []
        parts: list[KeptPart] = []
        number, token = 0, self._job_master.fencing_token
        while (piece := await executor.hand_over(self._graph.job_id, token, number)) is not None:
            finished += piece.finished
            if piece.part is not None:
                parts.append(piece.part)
            number += 1
        places = (report.location, *(task.slot.location for task in finished))
        task_executors = tuple(dict.fromkeys(places))
        return Left((), task_executors, report.notes, tuple(finished), tuple(parts))
