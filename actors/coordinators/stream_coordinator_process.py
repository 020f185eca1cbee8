"""Starts the process with the enumerators of a job's sources and the global part of its output
formats for the JobMaster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_FACTORY,
    AdoptedCoordinator,
    KeptPart,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import ExecutionGraphID, JobMasterId
from flinkray.core.job_options import MAX_WAITING_EPOCHS, STATE_RECOVERY_IGNORE_UNCLAIMED
from flinkray.core.options import JOB_MASTER_TAKEOVER_TIMEOUT, STORAGE_PERMISSIONS
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, RpcService
from flinkray.scheduler.graph.job_graph import MASTER_HOOK, STREAM, JobGraph, JobVertex
from flinkray.scheduler.job.coordinator_events import CoordinatorID

log = logging.getLogger(__name__)


def source_operator_of(vertex: JobVertex) -> str:
    """Return the operator id of the source with which a vertex begins.
    For a graph that was stored without operators, returns an id that no checkpoint contains.
    """
    return vertex.operators[0].operator_id if vertex.operators else vertex.vertex_id.hex()


def stream_sources_of(graph: JobGraph) -> Iterator[JobVertex]:
    """Yield the vertices whose chain of operators begins with a stream source."""
    for vertex in graph.vertices:
        if vertex.invokable.kind == STREAM and not vertex.inputs:
            yield vertex


def _code_of(graph: JobGraph, vertex: JobVertex) -> VertexCode:
    return VertexCode(
        vertex.vertex_id,
        source_operator_of(vertex),
        vertex.name,
        vertex.invokable.code,
        graph.has_master_hook and MASTER_HOOK in vertex.invokable.configuration,
    )


@dataclass(frozen=True, slots=True)
class SourcesBeginning:
    """What a new process of the source coordinator begins with: its owner (a JobMaster) and the
    state of the sources."""

    owner: JobMasterId
    """The JobMaster by whose id tasks know the coordinator. The process name contains it."""
    restores: int
    """How often the job's sources have been restored."""
    restored: RestoredCoordinators | None
    """The state of the last restore. None: there is no state, or *kept* holds all of it."""
    kept: tuple[KeptPart, ...]
    """Parts of the state of an earlier coordinator that has died, as kept by other processes."""
    graph_id: ExecutionGraphID
    """Execution graph of the tasks that the coordinator serves."""


class StreamCoordinatorProcess(CoordinatorProcess):
    """Starts the process that coordinates all sources of the job.
    Tasks find this process by its name.
    """

    title = "the coordinator of the job's sources"
    ends_by_itself = 10.0
    outlives_its_job_master = True

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        on_replaced: Callable[[str], None],
    ) -> None:
        """Create the starter of the job's coordinator.
        *on_replaced* is called with the reason when another JobMaster has taken over the process.
        """
        self._on_replaced = on_replaced
        self._services = services
        self._job_master = job_master
        self._graph = graph
        self._vertices = tuple(_code_of(graph, vertex) for vertex in stream_sources_of(graph))
        self._formats = tuple(
            _code_of(graph, vertex) for vertex in graph.vertices if vertex.has_global_formats
        )

    def spec(
        self, coordinator: CoordinatorID, beginning: SourcesBeginning, blob_server: str | None
    ) -> EndpointSpec:
        """Return the specification of the process that an attempt of the coordinator needs.
        *blob_server* is the address of the server for code that is not in the arguments.
        """
        graph = self._graph
        arguments = StreamCoordinatorArguments(
            self._services.arguments.cluster_id,
            graph.job_id,
            beginning.owner,
            self._job_master.fencing_token,
            coordinator,
            self._job_master.address,
            self._vertices,
            graph.files,
            beginning.restored,
            self._services.configuration.get(JOB_MASTER_TAKEOVER_TIMEOUT),
            self._services.arguments.storage_dir,
            beginning.restores,
            beginning.kept,
            beginning.graph_id,
            self._services.configuration.with_values(graph.configuration).get(MAX_WAITING_EPOCHS),
            formats=self._formats,
            storage_permissions=self._services.configuration.get(STORAGE_PERMISSIONS),
            blob_server=blob_server,
            allow_non_restored_state=ReadableConfig(graph.configuration).get(
                STATE_RECOVERY_IGNORE_UNCLAIMED
            ),
        )
        return EndpointSpec(
            "StreamCoordinator",
            stream_coordinator_process(graph.job_id, beginning.owner),
            STREAM_COORDINATOR_FACTORY,
            arguments,
            detached=True,
            may_take_over=True,
            may_return=True,
        )

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        return self._connected(await service.connect(address, StreamCoordinatorGateway))

    async def adopt(
        self, address: str, owner: JobMasterId
    ) -> tuple[ConnectedCoordinator, AdoptedCoordinator]:
        """Take over the coordinator that an earlier JobMaster, *owner*, has started. Returns the
        connection to it and its state.

        Raises:
            RpcError: the coordinator is not there, or does not answer.
            CoordinatorReplacedError: the coordinator belongs to another JobMaster.
        """
        master = self._job_master
        coordinator = await master.connect(address, StreamCoordinatorGateway)
        adopted = await coordinator.adopt(owner, master.fencing_token, master.address)
        return self._connected(coordinator), adopted

    def _connected(self, coordinator: StreamCoordinatorGateway) -> ConnectedCoordinator:
        token = self._job_master.fencing_token

        async def request_heartbeat() -> None:
            try:
                await coordinator.request_heartbeat(token)
            except CoordinatorReplacedError as error:
                self._on_replaced(str(error))

        return ConnectedCoordinator(coordinator, request_heartbeat, lambda: coordinator.stop(token))
