"""The Spark drivers that past JobMasters of a job have started, and that outlive them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

from flinkray.actors.coordinators.process import ConnectedCoordinator
from flinkray.actors.coordinators.spark_driver_process import SparkDriverProcess
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.rpc.time_limit import within
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.taking_over import CoordinatorAttempt, JobNotes
from flinkray.spark.gateway import (
    SPARK_DRIVER_ENDPOINT,
    spark_driver_process,
    spark_drivers_of_job,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdoptedDriver:
    """A Spark driver of an earlier JobMaster that this JobMaster has taken over."""

    coordinator: CoordinatorID
    process: str
    connected: ConnectedCoordinator

    @property
    def address(self) -> str:
        return f"{self.process}/{SPARK_DRIVER_ENDPOINT}"


class PastDrivers:
    """Takes over or kills Spark drivers of past JobMasters.
    Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        process: SparkDriverProcess,
        patience: float,
    ) -> None:
        """Create the object that takes over drivers.
        It looks for them in :meth:`adopt`. *patience*: seconds that each driver may take to answer.
        """
        self._patience = patience
        self._job_master = job_master
        self._graph = graph
        self._process = process
        self._others: set[str] = set()

    async def adopt(self, notes: JobNotes | None) -> dict[JobVertexID, AdoptedDriver]:
        """Take over the drivers that *notes* name and that answer. Returns the drivers by vertex.
        Drivers that do not answer are left to :meth:`end_others`.
        """
        if not self._graph.has_coordinated_vertices:
            return {}
        prefix = spark_drivers_of_job(self._graph.job_id)
        self._others = set(await self._job_master.rpc_service.process_names(prefix))
        if notes is None:
            return {}
        present = [attempt for attempt in notes.coordinators if attempt.is_present]
        found = await asyncio.gather(*(self._adopted(notes.graph_id, it) for it in present))
        return {
            attempt.vertex_id: driver
            for attempt, driver in zip(present, found, strict=True)
            if driver is not None
        }

    async def _adopted(
        self, graph_id: ExecutionGraphID, attempt: CoordinatorAttempt
    ) -> AdoptedDriver | None:
        vertex_id, number = attempt.vertex_id, attempt.attempt_number
        process = spark_driver_process(self._graph.job_id, vertex_id, graph_id, number)
        if process not in self._others:
            return None
        coordinator = CoordinatorID(CoordinatorKind.SPARK_DRIVER, vertex_id, number)
        adopting = self._process.adopt(f"{process}/{SPARK_DRIVER_ENDPOINT}")
        try:
            connected = await within(self._patience, adopting)
        except (FlinkRayError, asyncio.TimeoutError) as error:
            log.warning(
                "%s: %s (%s) is lost: %r",
                self._graph.text,
                self._process.name_of(coordinator),
                process,
                error,
            )
            return None
        return AdoptedDriver(coordinator, process, connected)

    async def end_others(self, kept: Collection[AdoptedDriver]) -> None:
        """Kill all drivers of past JobMasters that existed at :meth:`adopt`, except the drivers in
        *kept*.
        """
        for process in sorted(self._others - {driver.process for driver in kept}):
            log.info("%s: %s is killed: it does not go on", self._graph.text, process)
            await self._job_master.rpc_service.kill(process)
