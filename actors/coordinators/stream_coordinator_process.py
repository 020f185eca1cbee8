"""How the JobMaster starts the process that runs the enumerators of a job's sources."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_FACTORY,
    RestoredCoordinators,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.core.ids import JobMasterId
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, RpcService
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph, JobVertex
from flinkray.scheduler.job.job_scheduler_actions import StartCoordinator


def source_operator_of(vertex: JobVertex) -> str:
    """Id of the source that a vertex begins with; of a graph that was stored without, one that no
    checkpoint names."""
    return vertex.operators[0].operator_id if vertex.operators else vertex.vertex_id.hex()


class StreamCoordinatorProcess(CoordinatorProcess):
    """One for all sources of the job; tasks find it by its name."""

    title = "the coordinator of the job's sources"
    ends_by_itself = 10.0

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        cluster_id: str,
        restored: Callable[[], RestoredCoordinators | None],
    ) -> None:
        """*restored*: what coordinators were restored to last; None: they begin anew."""
        self._restored = restored
        self._cluster_id = cluster_id
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
            self._cluster_id,
            graph.job_id,
            self._job_master.fencing_token,
            action.coordinator,
            self._job_master.address,
            self._vertices,
            graph.files,
            self._restored(),
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
