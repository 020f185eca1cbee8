"""Defines SparkDriver, the operator coordinator of a Spark stage, in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import psutil

from flinkray.core.captured_output import note_output
from flinkray.core.errors import RpcError
from flinkray.core.ids import JobMasterId
from flinkray.core.private_files import permit
from flinkray.rpc import RpcService
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
)
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark.gateway import (
    ExecutorLaunch,
    ExecutorSlot,
    SparkExecutorsGateway,
    SparkSessionAccess,
    SparkSessionGateway,
    SparkSessionGuest,
    SparkStageDescriptor,
)
from flinkray.spark.job_master_reports import LedDriver, job_master_of
from flinkray.spark.ray_cluster import current_ray_context, place_of_this_process
from flinkray.spark.session_guests import SparkSessionDesk
from flinkray.spark.stage import SparkStage, StageListener, StageRun
from flinkray.spark.stage_code import fetch_code

log = logging.getLogger(__name__)


async def create_spark_driver(rpc_service: RpcService, stage: SparkStageDescriptor) -> SparkDriver:
    """Create a SparkDriver, for :meth:`RpcService.spawn`. The process must be connected to Ray."""
    permit(stage.storage_permissions)
    ray = current_ray_context()
    note_output(stage.job_id, rpc_service.process_name)
    code = await fetch_code(rpc_service, stage)
    await job_master_of(rpc_service, stage)
    session, access = None, None
    if stage.session is not None:
        session, access = await attach_to_session(rpc_service, stage)
    place = place_of_this_process()
    return SparkDriver(
        rpc_service,
        stage,
        lambda listener: SparkStage(stage, code, ray, listener, access=access, place=place),
        session,
        node_id=place.node_id,
    )


async def attach_to_session(
    rpc_service: RpcService, stage: SparkStageDescriptor
) -> tuple[SparkSessionGateway, SparkSessionAccess]:
    """Attach this process to a shared session as a guest, and return the session and the access to
    it. An earlier attempt of the stage is ended first. Raises SparkSessionEndedError: the session
    takes no guests."""
    session = await rpc_service.connect(stage.session_address, SparkSessionGateway)
    guest = SparkSessionGuest(
        rpc_service.process_name,
        os.getpid(),
        psutil.Process().create_time(),
        f"{stage.job_id} {stage.vertex_id}",
    )
    return session, await session.attach(guest)


class SparkDriver(LedDriver, SparkExecutorsGateway):
    """The endpoint of a Spark driver: runs one attempt of a stage, and reports its events in order.
    The driver ends when it is stopped or its attempt has failed, or when its JobMaster is gone and
    no other JobMaster takes control in time. In each case it first ends everything that it has
    started."""

    def __init__(
        self,
        rpc_service: RpcService,
        stage: SparkStageDescriptor,
        create_run: Callable[[StageListener], StageRun],
        session: SparkSessionGateway | None = None,
        node_id: str = "",
    ) -> None:
        """Make the driver of one attempt of *stage*. *create_run* makes the object that runs the
        stage, from its listener. *session*: shared session to which this process is attached as a
        guest; None: it is no guest. *node_id*: node of this process."""
        super().__init__(rpc_service, stage)
        self._stage = stage
        self._run = create_run(self)
        self._session = session
        self._node_id = node_id
        self._desk: SparkSessionDesk | None = None
        self._stopped: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        await self._leader.follow_first()
        if self._session is not None:
            self.watch(self._session, self._run.session_lost)
        if self._stage.held_session is not None:
            self._desk = SparkSessionDesk(self.rpc_service, self._run.guests, self._node_id)
            self._desk.start()
        self._run.start()

    async def on_stop(self) -> None:
        await self._stop_spark()

    # --- orders -------------------------------------------------------------------------------

    async def stop(self, job_master_id: JobMasterId) -> None:
        self._leader.refuse_others(job_master_id)
        await self._stop_spark()
        self.close()

    async def _stop_spark(self) -> None:
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop_all())
        await asyncio.shield(self._stopped)

    async def _stop_all(self) -> None:
        if self._desk is not None:
            self._desk.close()
        await self.rpc_service.run_blocking(self._run.stop)
        if self._session is not None:
            try:
                await self._session.leave(self.rpc_service.process_name)
            except RpcError as error:
                log.info("the Spark session is not there any more: %s", error)

    # --- executors that TaskExecutors start ---------------------------------------------------

    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        await asyncio.shield(asyncio.wrap_future(self._run.desk.application))
        return self._run.desk.launch(slot)

    async def executor_started(self, executor_id: str, pid: int) -> None:
        self._run.desk.started(executor_id, pid)

    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        return self._run.desk.ended(executor_id, exit_code, how)

    # --- events of the stage, from its threads ------------------------------------------------

    def executors_changed(self, registered: tuple[SparkExecutorInfo, ...]) -> None:
        self.run_async(lambda: self._leader.tell_executors(registered))

    def progress(self, progress: SparkProgress) -> None:
        self._report(progress)

    def finished(self, result: SparkResult) -> None:
        self._report(result)

    def failed(self, failure: CoordinatorFailure) -> None:
        self._report(failure)

    def _report(self, event: CoordinatorEvent) -> None:
        self.run_async(lambda: self._leader.tell(event))

    def _told(self, event: CoordinatorEvent) -> None:
        if isinstance(event, CoordinatorFailure):
            self.close()
