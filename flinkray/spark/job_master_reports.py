"""Reports the events of a Spark stage attempt to its JobMaster, which a later JobMaster may
replace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError, RpcSerializationError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RpcEndpoint, RpcService, TerminationWatch, TimerHandle
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    SparkExecutors,
)
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark.gateway import (
    SPARK_DRIVER_ENDPOINT,
    CoordinatorListenerGateway,
    SparkDriverGateway,
    SparkStageDescriptor,
)

log = logging.getLogger(__name__)

_ORDER = (SparkExecutors, SparkProgress, SparkResult, CoordinatorFailure)
"""Order of events for a new JobMaster. The last event of each kind includes all earlier ones."""


async def job_master_of(
    rpc_service: RpcService, stage: SparkStageDescriptor
) -> CoordinatorListenerGateway:
    """Connect to the JobMaster that has started the attempt, after asking it whether it leads.
    Raises FencingTokenError, LeadershipLostError or RpcConnectionError: it does not lead any more,
    and nothing must be started for it."""
    return await _leading(rpc_service, stage.listener_address, stage.job_master_id)


async def _leading(
    rpc_service: RpcService, address: str, job_master_id: JobMasterId
) -> CoordinatorListenerGateway:
    listener = await rpc_service.connect(address, CoordinatorListenerGateway, job_master_id)
    await listener.confirm_leadership()
    return listener


class LedDriver(RpcEndpoint, SparkDriverGateway):
    """Base class of Spark drivers: takes orders from one JobMaster, and reports the stage's events
    to it."""

    def __init__(self, rpc_service: RpcService, stage: SparkStageDescriptor) -> None:
        super().__init__(rpc_service, SPARK_DRIVER_ENDPOINT)
        self._leader = JobMasterOfStage(self, stage, on_told=self._told, on_alone=self.close)

    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        self._leader.refuse_others(job_master_id)
        self._leader.lives()

    async def adopt(self, job_master_id: JobMasterId, listener_address: str) -> None:
        await self._leader.adopt(job_master_id, listener_address)

    def _told(self, event: CoordinatorEvent) -> None:
        """Called when the JobMaster has received *event*. Does nothing here; subclasses override
        it."""


class JobMasterOfStage:
    """Knows the JobMaster from which a stage's driver takes orders, and sends it the stage's events
    in order. Used on the main thread of the driver's endpoint. The last event of each type is kept
    and sent to the next JobMaster, which must adopt the driver before the takeover timeout."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        stage: SparkStageDescriptor,
        on_told: Callable[[CoordinatorEvent], None],
        on_alone: Callable[[], object],
    ) -> None:
        """Prepare the reports of *endpoint*, the driver of *stage*. *on_told* is called with each
        event that the JobMaster has received. *on_alone* is called if the JobMaster is gone and no
        other has adopted the driver in time."""
        self._endpoint = endpoint
        self._stage = stage
        self._on_told = on_told
        self._on_alone = on_alone
        self._id = stage.job_master_id
        self._listener: CoordinatorListenerGateway
        self._registered: set[int] = set()
        """Subtasks that have or had a registered executor."""
        self._last: dict[type[CoordinatorEvent], CoordinatorEvent] = {}
        self._events: asyncio.Queue[CoordinatorEvent] = asyncio.Queue()
        self._watch: TerminationWatch | None = None
        self._telling: asyncio.Task[None] | None = None
        self._deadline: TimerHandle | None = None
        """Deadline for the next JobMaster. None: a JobMaster is there."""
        self._asked = 0
        """Number of requests to adopt the driver."""
        self._followed = 0
        """Number of the adoption request that is in effect."""

    @property
    def _name(self) -> str:
        """Address of the driver and name of the job, for log lines."""
        return f"{self._endpoint.address} ({self._stage.job_name})"

    async def follow_first(self) -> None:
        """Begin to report to the JobMaster that has started the attempt. Raises RpcConnectionError:
        it cannot be reached."""
        stage = self._stage
        self._follow(
            await self._endpoint.connect(
                stage.listener_address, CoordinatorListenerGateway, stage.job_master_id
            )
        )

    def refuse_others(self, job_master_id: JobMasterId) -> None:
        """Raise CoordinatorReplacedError if the driver takes orders from another JobMaster than
        this one."""
        if job_master_id != self._id:
            raise CoordinatorReplacedError(
                f"the Spark driver of {self._stage.attempt_name} of {self._stage.job_text} takes "
                f"its orders of JobMaster {self._id}, not of {job_master_id}"
            )

    def lives(self) -> None:
        """Note that the JobMaster is alive, because it has sent a request. Events that could not be
        sent to it before are sent now."""
        if self._deadline is not None:
            self._follow(self._listener)

    async def adopt(self, job_master_id: JobMasterId, address: str) -> None:
        """Report to the JobMaster at *address* from now on, after asking it whether it leads.
        Raises CoordinatorReplacedError: a later JobMaster was adopted before the answer came."""
        if job_master_id == self._id:
            self.lives()
            return
        self._asked += 1
        number = self._asked
        listener = await _leading(self._endpoint.rpc_service, address, job_master_id)
        if number < self._followed:
            self.refuse_others(job_master_id)
            return
        log.info("%s goes on under JobMaster %s", self._name, job_master_id)
        self._id, self._followed = job_master_id, number
        self._follow(listener)

    def tell_executors(self, registered: tuple[SparkExecutorInfo, ...]) -> None:
        """Report to the JobMaster which executors are registered now, and which subtasks have
        lost theirs.
        """
        now = {info.subtask_index for info in registered}
        self._registered |= now
        self.tell(SparkExecutors(registered, tuple(sorted(self._registered - now))))

    def tell(self, event: CoordinatorEvent) -> None:
        self._last[type(event)] = event
        self._events.put_nowait(event)

    def _follow(self, listener: CoordinatorListenerGateway) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._watch is not None:
            self._watch.cancel()
        if self._telling is not None:
            self._telling.cancel()
        self._listener = listener
        self._events = asyncio.Queue()
        for kind in _ORDER:
            if kind in self._last:
                self._events.put_nowait(self._last[kind])
        self._watch = self._endpoint.watch(listener, partial(self._lost, listener))
        telling = self._tell(listener, self._events)
        self._telling = self._endpoint.create_task(telling, name="reports to the JobMaster")

    async def _tell(
        self, listener: CoordinatorListenerGateway, events: asyncio.Queue[CoordinatorEvent]
    ) -> None:
        while True:
            event = await events.get()
            try:
                await listener.coordinator_told(self._stage.coordinator, event)
            except RpcSerializationError:
                log.exception("%s ends: nobody can be told this", self._name)
                self._on_alone()
                return
            except FlinkRayError as error:  # the JobMaster is gone, replaced or silent
                self._lost(listener, str(error))
                return
            self._on_told(event)

    def _lost(self, listener: CoordinatorListenerGateway, reason: str) -> None:
        if listener is not self._listener or self._deadline is not None:
            return
        patience = self._stage.takeover_timeout
        log.warning(
            "%s goes on without JobMaster %s for %g s: %s",
            self._name,
            self._id,
            patience,
            reason,
        )
        self._deadline = self._endpoint.schedule_deadline(patience, self._end_alone)

    def _end_alone(self) -> None:
        log.warning("%s ends: no JobMaster has adopted it", self._name)
        self._on_alone()
