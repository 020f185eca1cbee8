"""What differs between the kinds of operator coordinators: the process that runs one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from flinkray.actors.coordinators.user_code_process import (
    USER_CODE_PROCESS_FACTORY,
    UserCodeProcessGateway,
)
from flinkray.actors.gateways.job_processes import job_process
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_FACTORY,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core import options
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.file_results import partition_location, whole_location
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, Placement, RpcGateway, RpcService
from flinkray.scheduler.graph.job_graph import COORDINATED_KINDS, STREAM, JobGraph
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    CoordinatorInput,
    CoordinatorKind,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    FormatRequest,
    InitializeFormat,
)
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator
from flinkray.spark.gateway import SparkDriverGateway, SparkStageDescriptor, SparkStageInput

SPARK_DRIVER_FACTORY = "flinkray.spark.driver:create_spark_driver"


@dataclass(frozen=True, slots=True)
class ConnectedCoordinator:
    """What every coordinator answers, whatever else it does."""

    gateway: RpcGateway
    """To be watched."""
    request_heartbeat: Callable[[], Coroutine[Any, Any, None]]
    """It answers, whatever user code does at the moment."""
    stop: Callable[[], Coroutine[Any, Any, None]]
    """It ends what it has started and has left behind; then the process ends."""


class CoordinatorProcess(ABC):
    """How coordinators of one kind are started and connected to."""

    title: str
    """For people: ``the Spark driver``."""
    ends_by_itself: float = 0.0
    """Seconds that one has for ending by itself when its JobMaster ends; 0: it is killed at once,
    and nothing of it stays."""
    has_fixed_name = True
    """Whether the process of another attempt of the same JobMaster has the same name."""

    @abstractmethod
    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        """The process of an attempt; *blob_server* is where code comes from that is not in it."""

    @abstractmethod
    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        """To a process that was spawned."""


def spark_driver_process(descriptor: SparkStageDescriptor) -> str:
    """Name of the process of a stage attempt's driver.

    The JobMasterId is part of it, as each JobMaster of a job counts its attempts from 0.
    """
    return (
        f"SparkDriver-{descriptor.job_id}-{descriptor.vertex_id.short()}"
        f"-{descriptor.job_master_id.short()}-{descriptor.attempt_number}"
    )


class SparkDriverProcess(CoordinatorProcess):
    """In the first bundle of the stage's worker group."""

    title = "the Spark driver"
    has_fixed_name = False

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        factory: str,
    ) -> None:
        self._job_master = job_master
        self._graph = graph
        self._services = services
        self._factory = factory

    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        descriptor = self._descriptor(action, blob_server)
        return EndpointSpec(
            kind="SparkDriver",
            name=spark_driver_process(descriptor),
            factory=self._factory,
            arguments=descriptor,
            placement=Placement(worker_group=descriptor.worker_group, bundle_index=0),
        )

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        token = self._job_master.fencing_token
        driver = await service.connect(address, SparkDriverGateway, token)
        return ConnectedCoordinator(driver, driver.request_heartbeat, driver.stop)

    def _descriptor(
        self, action: StartCoordinator, blob_server: str | None
    ) -> SparkStageDescriptor:
        graph, coordinator = self._graph, action.coordinator
        job_master_id = self._job_master.fencing_token
        vertex = next(v for v in graph.vertices if v.vertex_id == coordinator.vertex_id)
        java_home = self._services.configuration.get(options.JAVA_HOME)
        defaults = {} if java_home is None else {options.JAVA_HOME.key: java_home}
        return SparkStageDescriptor(
            job_id=graph.job_id,
            job_name=graph.name,
            vertex_id=vertex.vertex_id,
            attempt_number=coordinator.attempt_number,
            listener_address=self._job_master.address,
            job_master_id=job_master_id,
            worker_group=action.slots[0].location.worker_group,
            parallelism=vertex.parallelism,
            slot_profile=vertex.slot_profile,
            code=vertex.invokable.code,
            configuration={**defaults, **vertex.invokable.configuration},
            result_location=self._result_location(action, vertex.vertex_id),
            is_result_read=bool(action.results),
            blob_server=blob_server,
            inputs=tuple(map(self._input, action.inputs)),
        )

    def _result_location(self, action: StartCoordinator, vertex_id: JobVertexID) -> str:
        storage, job_id = self._services.arguments.storage_dir.rstrip("/"), self._graph.job_id
        attempt = action.coordinator.attempt_number
        for result in action.results:
            return whole_location(storage, job_id, result.graph_id, result.data_set_id, attempt)
        master = self._job_master.fencing_token.short()
        return f"{storage}/data/{job_id}/{vertex_id.short()}-{master}-{attempt}"

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


class SourceEnumeratorsProcess(CoordinatorProcess):
    """One for all sources of the job; tasks find it by its name."""

    title = "the coordinator of the job's sources"
    ends_by_itself = 10.0

    def __init__(
        self, job_master: FencedRpcEndpoint[JobMasterId], graph: JobGraph, cluster_id: str
    ) -> None:
        self._cluster_id = cluster_id
        self._job_master = job_master
        self._graph = graph
        self._vertices = tuple(
            VertexCode(vertex.vertex_id, vertex.name, vertex.invokable.code)
            for vertex in graph.vertices
            if vertex.invokable.kind == STREAM and not vertex.inputs
        )

    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        graph = self._graph
        arguments = StreamCoordinatorArguments(
            self._cluster_id,
            graph.job_id,
            self._job_master.fencing_token,
            action.coordinator,
            self._job_master.address,
            self._vertices,
            graph.files,
        )
        return EndpointSpec(
            "StreamCoordinator",
            stream_coordinator_process(graph.job_id, self._job_master.fencing_token),
            STREAM_COORDINATOR_FACTORY,
            arguments,
            may_take_over=True,
        )

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        token = self._job_master.fencing_token
        coordinator = await service.connect(address, StreamCoordinatorGateway)
        return ConnectedCoordinator(
            coordinator,
            lambda: coordinator.request_heartbeat(token),
            lambda: coordinator.stop(token),
        )


class MasterFormatsProcess(CoordinatorProcess):
    """A process that may run user code: it is asked to initialise and finalise formats."""

    title = "the process of the job's formats"
    ends_by_itself = 10.0

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId], graph: JobGraph) -> None:
        self._job_master = job_master
        self._job_id = graph.job_id
        self._names = {vertex.vertex_id: vertex.name for vertex in graph.vertices}

    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        token = self._job_master.fencing_token
        name = job_process("MasterFormats", self._job_id, token)
        return EndpointSpec("MasterFormats", name, USER_CODE_PROCESS_FACTORY, token)

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        process = await self._connect(service, address)
        return ConnectedCoordinator(process, process.request_heartbeat, process.stop)

    async def _connect(self, service: RpcService, address: str) -> UserCodeProcessGateway:
        token = self._job_master.fencing_token
        return await service.connect(address, UserCodeProcessGateway, token)

    async def ask(
        self, service: RpcService, address: str, request: FormatRequest
    ) -> CoordinatorEvent:
        """Have a running one initialise or finalise a format; the answer, whatever came of it."""
        vertex_id, code = request.vertex_id, request.master_format
        generation = 0
        try:
            process = await self._connect(service, address)
            if isinstance(request, InitializeFormat):
                splits = await process.initialize(vertex_id, code, request.parallelism)
                return FormatInitialized(vertex_id, splits)
            generation = request.generation
            await process.finalize(vertex_id, code, request.parallelism)
            return FormatFinalized(vertex_id, generation)
        except (RecipientUnreachableError, RpcConnectionError, RpcTimeoutError) as error:
            # what it was asked for is done or not: nobody can know
            return CoordinatorFailure(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the user's format raised
            if not isinstance(error, FlinkRayError):
                error = FlinkRayError(f"{type(error).__name__}: {error}")
            text = f"the format of {self._names[vertex_id]} failed: {error}"
            return FormatFailed(vertex_id, generation, text, error.remote_traceback)


class CoordinatorProcesses:
    """All kinds of a job.  Requests for formats go to the process of its formats; the others cannot
    be asked for anything."""

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        spark_driver_factory: str,
    ) -> None:
        self.master_formats = MasterFormatsProcess(job_master, graph)
        self._kinds: dict[CoordinatorKind, CoordinatorProcess] = {
            CoordinatorKind.SPARK_DRIVER: SparkDriverProcess(
                job_master, graph, services, spark_driver_factory
            ),
            CoordinatorKind.SOURCE_ENUMERATORS: SourceEnumeratorsProcess(
                job_master, graph, services.arguments.cluster_id
            ),
            CoordinatorKind.MASTER_FORMATS: self.master_formats,
        }

    def __getitem__(self, kind: CoordinatorKind) -> CoordinatorProcess:
        return self._kinds[kind]
