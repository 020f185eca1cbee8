"""How the JobMaster starts the Spark driver of a stage."""

from __future__ import annotations

from dataclasses import replace

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.coordinators.spark_sessions import open_session
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core import options
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.file_results import (
    epochs_location,
    partition_location,
    published_location,
    stream_execution,
    whole_location,
)
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, Placement, RpcService
from flinkray.scheduler.graph.job_graph import COORDINATED_KINDS, JobGraph
from flinkray.scheduler.job.coordinator_events import CoordinatorInput
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator
from flinkray.spark.gateway import (
    EPOCHS,
    PUBLISHED,
    RESULT_KIND,
    THROUGH,
    SparkDriverGateway,
    SparkStageDescriptor,
    SparkStageInput,
    spark_driver_process,
)
from flinkray.spark.shared_session import HELD_SESSION, take_request

SPARK_DRIVER_FACTORY = "flinkray.spark.driver:create_spark_driver"


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
            name=spark_driver_process(
                descriptor.job_id,
                descriptor.vertex_id,
                descriptor.job_master_id,
                descriptor.attempt_number,
            ),
            factory=self._factory,
            arguments=descriptor,
            placement=Placement(worker_group=descriptor.worker_group, bundle_index=0),
        )

    async def prepared(self, spec: EndpointSpec) -> EndpointSpec:
        """A guest of a session runs on its node, because it maps files of the JVM's."""
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
        token = self._job_master.fencing_token
        driver = await service.connect(address, SparkDriverGateway, token)
        return ConnectedCoordinator(driver, driver.request_heartbeat, driver.stop)

    def _descriptor(
        self, action: StartCoordinator, blob_server: str | None
    ) -> SparkStageDescriptor:
        graph, coordinator = self._graph, action.coordinator
        job_master_id = self._job_master.fencing_token
        vertex = next(v for v in graph.vertices if v.vertex_id == coordinator.vertex_id)
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
                (published_location, (PUBLISHED, THROUGH)),
                (epochs_location, (EPOCHS, THROUGH)),
            )
        )
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
            configuration=configuration,
            result_location=self._result_location(action, vertex.vertex_id),
            is_result_read=bool(action.results),
            blob_server=blob_server,
            inputs=tuple(map(self._input, action.inputs)),
            published_location=published,
            epochs_location=epochs,
            stream_execution=stream_execution(action.graph_id, action.restores),
            session=session,
            held_session=held_session,
            session_idle_timeout=of_cluster.get(options.SPARK_SESSION_IDLE_TIMEOUT),
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
