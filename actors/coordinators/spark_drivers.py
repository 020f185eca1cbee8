"""The Spark drivers of a job: the operator coordinators that its JobMaster starts and stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core import options
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId, JobVertexID, ResourceID
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    HeartbeatSender,
    HeartbeatSettings,
    Placement,
    TerminationWatch,
)
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator, StopCoordinator
from flinkray.spark.gateway import SparkDriverGateway, SparkStageDescriptor

log = logging.getLogger(__name__)

SPARK_DRIVER_FACTORY = "flinkray.spark.driver:create_spark_driver"

CoordinatorKey = tuple[JobVertexID, int]
"""A vertex and the number of the attempt."""


def spark_driver_process(descriptor: SparkStageDescriptor) -> str:
    """Name of the process of a stage attempt's driver.

    The JobMasterId is part of it, as each JobMaster of a job counts its attempts from 0.
    """
    return (
        f"SparkDriver-{descriptor.job_id}-{descriptor.vertex_id.short()}"
        f"-{descriptor.job_master_id.short()}-{descriptor.attempt_number}"
    )


def stage_descriptor(
    graph: JobGraph,
    action: StartCoordinator,
    services: ClusterServices,
    job_master_address: str,
    job_master_id: JobMasterId,
) -> SparkStageDescriptor:
    """What the driver of an attempt is started with, but for where blobs come from."""
    vertex = next(v for v in graph.vertices if v.vertex_id == action.vertex_id)
    storage = services.arguments.storage_dir.rstrip("/")
    java_home = services.configuration.get(options.JAVA_HOME)
    defaults = {} if java_home is None else {options.JAVA_HOME.key: java_home}
    return SparkStageDescriptor(
        job_id=graph.job_id,
        job_name=graph.name,
        vertex_id=vertex.vertex_id,
        attempt_number=action.attempt_number,
        listener_address=job_master_address,
        job_master_id=job_master_id,
        worker_group=action.slots[0].location.worker_group,
        parallelism=vertex.parallelism,
        slot_profile=vertex.slot_profile,
        code=vertex.invokable.code,
        configuration={**defaults, **vertex.invokable.configuration},
        result_location=(
            f"{storage}/data/{graph.job_id}/{vertex.vertex_id.short()}"
            f"-{job_master_id.short()}-{action.attempt_number}"
        ),
    )


@dataclass
class _Coordinator:
    process: str
    start: asyncio.Task[None]
    watch: TerminationWatch | None = None
    gateway: SparkDriverGateway | None = None
    stopping: bool = False


class Coordinators:
    """Starts, watches and stops Spark drivers for the endpoint that owns them.

    Drivers die with the owner's process.  Callbacks run on the owner's main thread.
    """

    def __init__(
        self,
        owner: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        *,
        on_started: Callable[[CoordinatorKey], None],
        on_lost: Callable[[CoordinatorKey, str], None],
        on_stopped: Callable[[CoordinatorKey], None],
        heartbeat: HeartbeatSettings,
        factory: str = SPARK_DRIVER_FACTORY,
    ) -> None:
        """*on_lost*: it died or could not be started, and was not being stopped."""
        self._owner = owner
        self._graph = graph
        self._services = services
        self._on_started = on_started
        self._on_lost = on_lost
        self._on_stopped = on_stopped
        self._factory = factory
        self._heartbeat = heartbeat
        self._heartbeats: HeartbeatSender[None, None] | None = None
        self._coordinators: dict[CoordinatorKey, _Coordinator] = {}

    def carry_out(
        self, action: StartCoordinator | StopCoordinator, blob_server: str | None
    ) -> None:
        """Begin; *blob_server* is where the stage's function comes from."""
        key = (action.vertex_id, action.attempt_number)
        if isinstance(action, StopCoordinator):
            self.stop(key)
            return
        owner = self._owner
        descriptor = stage_descriptor(
            self._graph, action, self._services, owner.address, owner.fencing_token
        )
        self.start(key, replace(descriptor, blob_server=blob_server))

    def start(self, key: CoordinatorKey, descriptor: SparkStageDescriptor) -> None:
        """Spawn the driver in the first bundle of the job's worker group."""
        process = spark_driver_process(descriptor)
        spec = EndpointSpec(
            kind="SparkDriver",
            name=process,
            factory=self._factory,
            arguments=descriptor,
            placement=Placement(worker_group=descriptor.worker_group, bundle_index=0),
        )
        task = self._owner.create_task(self._start(key, spec), name=f"start {process}")
        self._coordinators[key] = _Coordinator(process, task)

    async def _start(self, key: CoordinatorKey, spec: EndpointSpec) -> None:
        service = self._owner.rpc_service
        try:
            address = await service.spawn(spec)
            token = self._owner.fencing_token
            gateway = await service.connect(address, SparkDriverGateway, token)
        except Exception as error:  # noqa: BLE001 - whatever the driver's own start-up raised
            await service.kill(spec.name)  # it may be there all the same, and only not answer
            self._lost(key, f"the Spark driver did not start: {type(error).__name__}: {error}")
            return
        coordinator = self._coordinators[key]
        coordinator.gateway = gateway
        if not coordinator.stopping:
            coordinator.watch = self._owner.watch(
                gateway, lambda reason: self._lost(key, f"the Spark driver died: {reason}")
            )
            self._monitor(key, coordinator.process, gateway)
            self._on_started(key)

    def _monitor(self, key: CoordinatorKey, process: str, gateway: SparkDriverGateway) -> None:
        """A driver that hangs is as good as dead, but for its death."""
        if self._heartbeats is None:
            silence = f"no heartbeat from it for {self._heartbeat.timeout:g} s"
            self._heartbeats = HeartbeatSender(
                self._owner,
                self._heartbeat,
                payload=lambda _: None,
                on_timeout=lambda target: self._deaf(target, silence),
                on_unreachable=lambda target: self._deaf(target, "it is unreachable"),
            )
        heartbeats, target = self._heartbeats, ResourceID(process)

        async def ask() -> None:
            await gateway.request_heartbeat()
            heartbeats.receive_heartbeat(target, None)

        heartbeats.monitor_target(target, lambda _: ask())

    def _deaf(self, process: ResourceID, reason: str) -> None:
        for key, coordinator in self._coordinators.items():
            if coordinator.process == process and not coordinator.stopping:
                self._owner.create_task(self._end_deaf(key, coordinator, reason), f"end {process}")

    async def _end_deaf(self, key: CoordinatorKey, coordinator: _Coordinator, reason: str) -> None:
        if coordinator.watch is not None:
            coordinator.watch.cancel()
        await self._owner.rpc_service.kill(coordinator.process)
        if self._coordinators.get(key) is coordinator:
            self._lost(key, f"the Spark driver was killed: {reason}")

    def _unmonitor(self, coordinator: _Coordinator) -> None:
        if coordinator.watch is not None:
            coordinator.watch.cancel()
        if self._heartbeats is not None:
            self._heartbeats.unmonitor_target(ResourceID(coordinator.process))

    def _lost(self, key: CoordinatorKey, reason: str) -> None:
        coordinator = self._coordinators.get(key)
        if coordinator is not None and not coordinator.stopping:
            del self._coordinators[key]
            self._unmonitor(coordinator)
            self._on_lost(key, reason)

    def stop(self, key: CoordinatorKey) -> None:
        """Stop it, gracefully if it can; ``on_stopped`` follows when its process is gone, also when
        there was none."""
        coordinator = self._coordinators.get(key)
        if coordinator is None:
            self._owner.run_async(lambda: self._on_stopped(key))
        elif not coordinator.stopping:
            coordinator.stopping = True
            self._owner.create_task(
                self._stop(key, coordinator), name=f"stop {coordinator.process}"
            )

    async def _stop(self, key: CoordinatorKey, coordinator: _Coordinator) -> None:
        self._unmonitor(coordinator)
        coordinator.start.cancel()  # or it would have to wait for a node that may never come
        await asyncio.wait([coordinator.start])
        if coordinator.gateway is not None:
            try:
                await coordinator.gateway.stop()
            except FlinkRayError as error:
                log.warning("%s did not stop by itself: %s", coordinator.process, error)
        await self._owner.rpc_service.kill(coordinator.process)
        self._coordinators.pop(key, None)
        self._on_stopped(key)

    async def kill_all(self) -> None:
        """End every driver at once; no callback follows."""
        coordinators = list(self._coordinators.values())
        self._coordinators.clear()
        if self._heartbeats is not None:
            self._heartbeats.stop()
        for coordinator in coordinators:
            self._unmonitor(coordinator)
            coordinator.start.cancel()
            await self._owner.rpc_service.kill(coordinator.process)
