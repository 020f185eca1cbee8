"""The source coordinators and Spark drivers that past JobMasters of a job have started, and that
outlive them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from flinkray.actors.coordinators.process import ConnectedCoordinator
from flinkray.actors.coordinators.spark_driver_process import SparkDriverProcess
from flinkray.actors.coordinators.stream_coordinator_process import StreamCoordinatorProcess
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_ENDPOINT,
    AdoptedCoordinator,
    stream_coordinators_of_job,
)
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError, RpcError
from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.rpc import FencedRpcEndpoint
from flinkray.rpc.time_limit import within
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.shared.taking_over import (
    CoordinatorAttempt,
    JobNotes,
    SourceCoordinatorPlace,
)
from flinkray.spark.gateway import (
    SPARK_DRIVER_ENDPOINT,
    spark_driver_process,
    spark_drivers_of_job,
)

log = logging.getLogger(__name__)

_ADOPTION_PAUSE = 0.1
"""Seconds until a coordinator that still counts its last JobMaster as alive is asked again."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A source coordinator of an earlier JobMaster that this JobMaster has taken over."""

    coordinator: CoordinatorID
    place: SourceCoordinatorPlace
    """Address and owner of the coordinator, with the number of its restores."""
    connected: ConnectedCoordinator


class PastCoordinators:
    """Finds, takes over and ends source coordinators that past JobMasters of the job have started.
    Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        process: StreamCoordinatorProcess,
    ) -> None:
        self._job_master = job_master
        self._graph = graph
        self._process = process

    async def adopt(self, place: SourceCoordinatorPlace, patience: float) -> Adopted | None:
        """Take over the coordinator at *place*. None if it is gone or cannot be taken over.

        *patience*: seconds to wait while the coordinator still counts its last JobMaster as alive.
        """
        found = await self._adopt(place.address, place.owner, patience)
        if found is None:
            return None
        connected, adopted = found
        known = replace(
            place,
            attempt_number=adopted.coordinator.attempt_number,
            restores=adopted.restores,
            has_readers=adopted.has_readers,
        )
        return Adopted(adopted.coordinator, known, connected)

    async def _adopt(
        self, address: str, owner: JobMasterId, patience: float
    ) -> tuple[ConnectedCoordinator, AdoptedCoordinator] | None:
        clock = self._job_master.clock
        deadline = clock.monotonic() + patience
        while True:
            try:
                return await self._process.adopt(address, owner)
            except CoordinatorReplacedError as error:
                if clock.monotonic() < deadline:
                    await self._job_master.rpc_service.pause(_ADOPTION_PAUSE)
                    continue
                log.warning("%s: %s", self._graph.text, error)
                return None
            except RpcError as error:
                log.warning(
                    "%s: the coordinator of its sources is lost: %s", self._graph.text, error
                )
                return None

    async def _all(self) -> list[tuple[str, JobMasterId]]:
        """Return (process name, id of the JobMaster that started it) of each coordinator
        process.
        """
        prefix = stream_coordinators_of_job(self._graph.job_id)
        names = await self._job_master.rpc_service.process_names(prefix)
        return [(name, JobMasterId.from_hex(name.removeprefix(prefix))) for name in names]

    async def end_others(self, kept: JobMasterId) -> None:
        """End the coordinators that past JobMasters have started, except that of the JobMaster
        *kept*, and except those that another JobMaster has taken over."""
        for name, owner in await self._all():
            if owner not in (kept, self._job_master.fencing_token):
                await self._end(name, owner)

    async def _end(self, name: str, owner: JobMasterId) -> None:
        master = self._job_master
        try:
            connected, _ = await self._process.adopt(_address(name), owner)
            await connected.stop()
        except CoordinatorReplacedError as error:
            log.info("%s: past coordinator %s goes on: %s", self._graph.text, name, error)
        except FlinkRayError as error:
            log.info("%s: past coordinator %s is killed: %s", self._graph.text, name, error)
            await master.rpc_service.kill(name)


def _address(process: str) -> str:
    return f"{process}/{STREAM_COORDINATOR_ENDPOINT}"


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
            log.info("%s: %s is killed: it is not taken over", self._graph.text, process)
            await self._job_master.rpc_service.kill(process)
