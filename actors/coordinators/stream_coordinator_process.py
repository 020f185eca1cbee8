"""How the JobMaster starts the process that runs the enumerators of a job's sources."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_FACTORY,
    AdoptedCoordinator,
    CoordinatorReplacedError,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.ids import JobMasterId
from flinkray.core.options import JOB_MASTER_TAKEOVER_TIMEOUT
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, RpcService
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph, JobVertex
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator

log = logging.getLogger(__name__)


def source_operator_of(vertex: JobVertex) -> str:
    """Id of the source that a vertex begins with; of a graph that was stored without, one that no
    checkpoint names."""
    return vertex.operators[0].operator_id if vertex.operators else vertex.vertex_id.hex()


class StreamCoordinatorProcess(CoordinatorProcess):
    """One for all sources of the job; tasks find it by its name."""

    title = "the coordinator of the job's sources"
    ends_by_itself = 10.0
    outlives_its_job_master = True

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        services: ClusterServices,
        restored: Callable[[], RestoredCoordinators | None],
        on_replaced: Callable[[str], None],
    ) -> None:
        """*restored*: what coordinators were restored to last; None: they begin anew.
        *on_replaced* is called with the reason when another JobMaster has the process."""
        self._on_replaced = on_replaced
        self._restored = restored
        self._services = services
        self._job_master = job_master
        self._graph = graph
        self._vertices = tuple(
            VertexCode(
                vertex.vertex_id,
                source_operator_of(vertex),
                vertex.name,
                vertex.invokable.code,
            )
            for vertex in graph.vertices
            if vertex.invokable.kind == STREAM and not vertex.inputs
        )

    def spec(self, action: StartCoordinator, blob_server: str | None) -> EndpointSpec:
        graph = self._graph
        arguments = StreamCoordinatorArguments(
            self._services.arguments.cluster_id,
            graph.job_id,
            self._job_master.fencing_token,
            action.coordinator,
            self._job_master.address,
            self._vertices,
            graph.files,
            self._restored(),
            self._services.configuration.get(JOB_MASTER_TAKEOVER_TIMEOUT),
            self._services.arguments.storage_dir,
        )
        return EndpointSpec(
            "StreamCoordinator",
            stream_coordinator_process(graph.job_id, self._job_master.fencing_token),
            STREAM_COORDINATOR_FACTORY,
            arguments,
            detached=True,
            may_take_over=True,
        )

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        return self._connected(await service.connect(address, StreamCoordinatorGateway))

    async def adopt(
        self, address: str, owner: JobMasterId
    ) -> tuple[ConnectedCoordinator, AdoptedCoordinator]:
        """Take over the one that an earlier JobMaster, *owner*, has started.

        Raises:
            RpcError: it is not there, or does not answer.
            CoordinatorReplacedError: it is another JobMaster's.
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
