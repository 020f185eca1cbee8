"""The SparkDriver: the operator coordinator of a Spark stage, in a process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint, RpcService
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
)
from flinkray.spark.gateway import (
    SparkDriverGateway,
    SparkStageDescriptor,
    SparkStageListenerGateway,
)
from flinkray.spark.ray_cluster import current_ray_context
from flinkray.spark.stage import SparkStage, StageListener, StageRun
from flinkray.spark.user_code import fetch_code

log = logging.getLogger(__name__)

ENDPOINT_ID = "sparkdriver"

Report = Callable[[SparkStageListenerGateway], Coroutine[Any, Any, None]]


async def create_spark_driver(rpc_service: RpcService, stage: SparkStageDescriptor) -> SparkDriver:
    """Factory for :meth:`RpcService.spawn`; the process must be connected to Ray."""
    ray = current_ray_context()
    code = await fetch_code(rpc_service, stage)
    return SparkDriver(rpc_service, stage, lambda listener: SparkStage(stage, code, ray, listener))


class SparkDriver(FencedRpcEndpoint[JobMasterId], SparkDriverGateway):
    """Runs one attempt of a stage and tells the JobMaster of it, in order.

    It lives until it is stopped, has failed, or its JobMaster is gone; whatever ends it, it first
    ends everything that it has started.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        stage: SparkStageDescriptor,
        create_run: Callable[[StageListener], StageRun],
    ) -> None:
        super().__init__(rpc_service, ENDPOINT_ID, stage.job_master_id)
        self._stage = stage
        self._run = create_run(self)
        self._reports: asyncio.Queue[tuple[Report, bool]] = asyncio.Queue()
        self._stopped: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        listener = await self.connect(
            self._stage.listener_address, SparkStageListenerGateway, self._stage.job_master_id
        )
        self.watch(listener, self._on_job_master_lost)
        self.create_task(self._send_reports(listener), name="reports to the JobMaster")
        self._run.start()

    async def on_stop(self) -> None:
        await self._stop_spark()

    async def request_heartbeat(self) -> None:
        """The answer is all that is wanted."""

    async def stop(self) -> None:
        await self._stop_spark()
        self.close()

    async def _stop_spark(self) -> None:
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self.rpc_service.run_blocking(self._run.stop))
        await asyncio.shield(self._stopped)

    def _on_job_master_lost(self, reason: str) -> None:
        log.warning(
            "the JobMaster of job %s is gone (%s): its Spark driver ends",
            self._stage.job_id,
            reason,
        )
        self.close()

    # --- events of the stage, from its threads ------------------------------------------------

    def executors_changed(self, registered: tuple[SparkExecutorInfo, ...]) -> None:
        self._report(
            lambda listener: listener.spark_executors_changed(
                self._stage.vertex_id, self._stage.attempt_number, registered
            )
        )

    def progress(self, progress: SparkProgress) -> None:
        self._report(
            lambda listener: listener.spark_progress(
                self._stage.vertex_id, self._stage.attempt_number, progress
            )
        )

    def finished(self, result: SparkResult) -> None:
        self._report(
            lambda listener: listener.spark_stage_finished(
                self._stage.vertex_id, self._stage.attempt_number, result
            )
        )

    def failed(self, failure: SparkFailure) -> None:
        self._report(
            lambda listener: listener.spark_stage_failed(
                self._stage.vertex_id, self._stage.attempt_number, failure
            ),
            is_last=True,
        )

    def _report(self, report: Report, is_last: bool = False) -> None:
        self.run_async(lambda: self._reports.put_nowait((report, is_last)))

    async def _send_reports(self, listener: SparkStageListenerGateway) -> None:
        while True:
            report, is_last = await self._reports.get()
            try:
                await report(listener)
            except FlinkRayError as error:
                # The JobMaster is gone, follows another leader session, or is deaf: this attempt
                # can no longer matter to it.
                self._on_job_master_lost(str(error))
                return
            if is_last:
                self.close()
                return
