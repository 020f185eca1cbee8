"""Starts the process of a job's formats for the JobMaster, and calls their global methods there."""

from __future__ import annotations

from flinkray.actors.coordinators.master_formats import (
    MASTER_FORMATS_FACTORY,
    MasterFormatsGateway,
)
from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.gateways.job_processes import job_process
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobMasterId
from flinkray.core.recurring_errors import outlook_of
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, RpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorFailure,
    FinalizeFormat,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    FormatRequest,
    InitializeFormat,
)


class MasterFormatsProcess(CoordinatorProcess):
    """The process in which a job's formats are initialised and finalised. It may run user code."""

    title = "the process of the job's formats"
    ends_by_itself = 10.0

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId], graph: JobGraph) -> None:
        self._job_master = job_master
        self._job_id = graph.job_id
        self._names = {vertex.vertex_id: vertex.name for vertex in graph.vertices}

    def spec(self) -> EndpointSpec:
        token = self._job_master.fencing_token
        name = job_process("MasterFormats", self._job_id, token)
        return EndpointSpec("MasterFormats", name, MASTER_FORMATS_FACTORY, token)

    async def connect(self, service: RpcService, address: str) -> ConnectedCoordinator:
        process = await self._connect(service, address)
        return ConnectedCoordinator(process, process.request_heartbeat, process.stop)

    async def _connect(self, service: RpcService, address: str) -> MasterFormatsGateway:
        token = self._job_master.fencing_token
        return await service.connect(address, MasterFormatsGateway, token)

    async def ask(
        self, service: RpcService, address: str, request: FormatRequest
    ) -> CoordinatorEvent:
        """Let the process at *address* initialise or finalise a format.
        Returns an event with the result or the failure. Failures are not raised.
        """
        vertex_id, code = request.vertex_id, request.master_format
        generation = 0
        try:
            process = await self._connect(service, address)
            match request:
                case InitializeFormat():
                    await process.initialize(vertex_id, code, request.parallelism)
                    return FormatInitialized(vertex_id)
                case FinalizeFormat():
                    generation = request.generation
                    await process.finalize(vertex_id, code, request.parallelism)
                    return FormatFinalized(vertex_id, generation)
        except (RecipientUnreachableError, RpcConnectionError, RpcTimeoutError) as error:
            # whether the request was carried out is unknown
            return CoordinatorFailure(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the user's format raised
            outlook = outlook_of(error)
            if not isinstance(error, FlinkRayError):
                error = FlinkRayError(f"{type(error).__name__}: {error}")
            text = f"the format of {self._names[vertex_id]} failed: {error}"
            return FormatFailed(vertex_id, generation, text, error.remote_traceback, *outlook)
