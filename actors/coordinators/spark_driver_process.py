"""Starts the Spark driver of a stage for the JobMaster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.coordinators.spark_sessions import open_session
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.core.job_options import STATE_RECOVERY_PATH
from flinkray.file_results import (
    epochs_location,
    partition_location,
    published_location,
    stream_execution,
    whole_location,
)
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, Placement, RpcService
from flinkray.rpc.time_limit import within
from flinkray.scheduler.graph.job_graph import COORDINATED_KINDS, JobGraph, JobVertex
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorInput
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator
from flinkray.spark.gateway import (
    EPOCHS,
    PARTITIONS,
    PUBLISHED,
    RESULT_KIND,
    THROUGH,
    SparkDriverGateway,
    SparkStageDescriptor,
    SparkStageInput,
    attempt_name,
    spark_driver_process,
)
from flinkray.spark.session_requests import HELD_SESSION, take_request

_UNTIL_NOTED = 5.0
"""Longest wait in seconds, before a driver is stopped, until its reports are noted.
Without a SlotPool they would never be noted.
"""

SPARK_DRIVER_FACTORY = "flinkray.spark.driver:create_spark_driver"


class SparkDriverProcess(CoordinatorProcess):
    """Starts Spark drivers. Each runs in the first bundle of its stage's worker group."""

    title = "the Spark driver"
    ends_by_itself = 10.0
    outlives_its_job_master = True
    is_killed_when_lost = True
    has_fixed_name = False

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        factory: str,
        noted: Callable[[], Awaitable[None]],
        on_replaced: Callable[[str], None],
    ) -> None:
        """Create the starter of a job's Spark drivers.
        *noted* returns when the numbers of all attempts so far are stored for the next JobMaster.
        *on_replaced* is called with the reason when another JobMaster has taken over a driver.
        """
        self._noted = noted
        self._on_replaced = on_replaced
        self._job_master = job_master
        self._graph = graph
        self._services = services
        self._factory = factory

    def name_of(self, coordinator: CoordinatorID) -> str:
        return f"{self.title} of {self._vertex(coordinator).name}"

    def _vertex(self, coordinator: CoordinatorID) -> JobVertex:
        return next(v for v in self._graph.vertices if v.vertex_id == coordinator.vertex_id)

    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        """Return the specification of the process that an attempt of a driver needs.
        *blob_server* is the address of the server for code that is not in the action.
        """
        descriptor = self._descriptor(action, blob_server)
        return EndpointSpec(
            kind="SparkDriver",
            name=spark_driver_process(
                descriptor.job_id,
                descriptor.vertex_id,
                descriptor.graph_id,
                descriptor.attempt_number,
            ),
            factory=self._factory,
            arguments=descriptor,
            placement=Placement(worker_group=descriptor.worker_group, bundle_index=0),
            detached=True,
        )

    async def prepared(self, spec: EndpointSpec) -> EndpointSpec:
        """Wait until the next JobMaster would find the number of this attempt, and, if the stage
        runs in a Spark session, until the session is open.

        Returns *spec* with the session's address and node, or unchanged without a session. The node
        must be the session's, because the driver memory-maps files of the session's JVM.
        """
        await self._noted()
        descriptor = spec.arguments
        assert isinstance(descriptor, SparkStageDescriptor)
        if descriptor.session is None:
            return spec
        found = await open_session(self._services, descriptor)
        return replace(
            spec,
            arguments=replace(descriptor, session_address=found.address),
            placement=Placement(node_id=found.node_id),
        )

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        return self._connected(await service.connect(address, SparkDriverGateway))

    async def adopt(self, address: str) -> ConnectedCoordinator:
        """Take over a driver that an earlier JobMaster has started, and return the connection to
        it.

        Raises:
            RpcError: the driver is not there, or does not answer.
        """
        master = self._job_master
        driver = await master.connect(address, SparkDriverGateway)
        await driver.adopt(master.fencing_token, master.address)
        return self._connected(driver)

    def _connected(self, driver: SparkDriverGateway) -> ConnectedCoordinator:
        token = self._job_master.fencing_token

        async def request_heartbeat() -> None:
            try:
                await driver.request_heartbeat(token)
            except CoordinatorReplacedError as error:
                self._on_replaced(str(error))

        async def stop() -> None:
            """Stop the driver, after waiting some seconds until its reports are stored for the next
            JobMaster. Reports that are not stored are lost with the driver.
            """
            with suppress(asyncio.TimeoutError):
                await within(_UNTIL_NOTED, self._noted())
            await driver.stop(token)

        return ConnectedCoordinator(driver, request_heartbeat, stop)

    def _descriptor(
        self, action: StartCoordinator, blob_server: str | None
    ) -> SparkStageDescriptor:
        graph, coordinator = self._graph, action.coordinator
        assert action.graph_id is not None
        vertex = self._vertex(coordinator)
        savepoint = ReadableConfig(graph.configuration).get(STATE_RECOVERY_PATH)
        of_cluster = self._services.configuration
        java_home = of_cluster.get(options.JAVA_HOME)
        defaults = {} if java_home is None else {options.JAVA_HOME.key: java_home}
        defaults[options.SPARK_HOST.key] = of_cluster.get(options.SPARK_HOST)
        configuration = {**defaults, **vertex.invokable.configuration}
        storage = self._services.arguments.storage_dir
        kind = configuration.pop(RESULT_KIND, None)
        held_session = configuration.pop(HELD_SESSION, None)
        session = take_request(configuration)
        published, epochs = (
            location_of(storage, graph.job_id, vertex.vertex_id) if kind in wanted else None
            for location_of, wanted in (
                (published_location, (PARTITIONS, PUBLISHED, THROUGH)),
                (epochs_location, (EPOCHS, THROUGH)),
            )
        )
        return SparkStageDescriptor(
            job_id=graph.job_id,
            job_name=graph.name,
            vertex_id=vertex.vertex_id,
            attempt_number=coordinator.attempt_number,
            listener_address=self._job_master.address,
            job_master_id=self._job_master.fencing_token,
            graph_id=action.graph_id,
            worker_group=action.slots[0].location.worker_group,
            parallelism=vertex.parallelism,
            slot_profile=vertex.slot_profile,
            code=vertex.invokable.code,
            configuration=configuration,
            result_location=self._result_location(action, vertex.vertex_id),
            is_result_read=bool(action.results),
            blob_server=blob_server,
            inputs=tuple(map(self._input, action.inputs)),
            published_location=published,
            epochs_location=epochs,
            stream_execution=stream_execution(action.graph_id, action.restores),
            begins_from_savepoint=savepoint is not None,
            is_divided_as_before=savepoint is not None and kind == PARTITIONS,
            session=session,
            held_session=held_session,
            session_idle_timeout=of_cluster.get(options.SPARK_SESSION_IDLE_TIMEOUT),
            takeover_timeout=of_cluster.get(options.JOB_MASTER_TAKEOVER_TIMEOUT),
            storage_permissions=of_cluster.get(options.STORAGE_PERMISSIONS),
        )

    def _result_location(self, action: StartCoordinator, vertex_id: JobVertexID) -> str:
        storage, job_id = self._services.arguments.storage_dir.rstrip("/"), self._graph.job_id
        attempt = action.coordinator.attempt_number
        for result in action.results:
            return whole_location(storage, job_id, result.graph_id, result.data_set_id, attempt)
        assert action.graph_id is not None
        return f"{storage}/data/{job_id}/{attempt_name(vertex_id, action.graph_id, attempt)}"

    def _input(self, read: CoordinatorInput) -> SparkStageInput:
        storage, job_id = self._services.arguments.storage_dir, self._graph.job_id
        vertices, locations = self._graph.vertices, read.locations
        name = next(v.name for v in vertices if v.vertex_id == read.producer_vertex_id)
        first = locations.first_partition
        partitions = tuple(
            locations.partition_id(first + i) for i in range(locations.number_of_partitions)
        )
        if read.producer_kind in COORDINATED_KINDS:
            whole = whole_location(
                storage,
                job_id,
                locations.graph_id,
                read.data_set_id,
                locations.coordinator_attempt,
            )
            return SparkStageInput(name, (whole,), partitions[:1])
        directories = tuple(partition_location(storage, job_id, p) for p in partitions)
        return SparkStageInput(name, directories, partitions)
