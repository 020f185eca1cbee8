"""How a JobMaster has formats prepare and commit: in a process that may run user code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flinkray.actors.format_process import FORMAT_PROCESS_FACTORY, FormatProcessGateway
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.rpc import EndpointSpec, RpcEndpoint
from flinkray.scheduler.failure import Failure
from flinkray.scheduler.input_splits import InputSplit
from flinkray.scheduler.job_graph import JobGraph
from flinkray.scheduler.job_scheduler_actions import FinalizeOnMaster, InitializeOnMaster


def format_process(job_id: JobID) -> str:
    """Name of the process of a job's formats."""
    return f"FormatProcess-{job_id}"


class FormatRunner:
    """Lives on the JobMaster's main thread.  The process is started when it is needed first, and
    dies with the JobMaster's."""

    def __init__(
        self,
        job_master: RpcEndpoint,
        graph: JobGraph,
        *,
        on_initialized: Callable[[JobVertexID, Sequence[InputSplit]], None],
        on_finalized: Callable[[JobVertexID, int], None],
        on_failed: Callable[[JobVertexID, Failure, int], None],
    ) -> None:
        self._job_master = job_master
        self._job_id = graph.job_id
        self._vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
        self._on_initialized = on_initialized
        self._on_finalized = on_finalized
        self._on_failed = on_failed
        self._process: FormatProcessGateway | None = None

    def carry_out(self, action: InitializeOnMaster | FinalizeOnMaster) -> None:
        """Begin; one of the callbacks follows."""
        self._job_master.create_task(self._carry_out(action), "have a format work")

    async def _carry_out(self, action: InitializeOnMaster | FinalizeOnMaster) -> None:
        vertex = self._vertices[action.vertex_id]
        parallelism = vertex.parallelism
        generation = action.generation if isinstance(action, FinalizeOnMaster) else 0
        try:
            process = await self._connect()
            if isinstance(action, InitializeOnMaster):
                splits = await process.initialize(
                    action.vertex_id, action.master_format, parallelism
                )
                self._on_initialized(action.vertex_id, splits)
            else:
                await process.finalize(action.vertex_id, action.master_format, parallelism)
                self._on_finalized(action.vertex_id, generation)
        except Exception as error:  # noqa: BLE001 - whatever the user's format raised
            if not isinstance(error, FlinkRayError):
                error = FlinkRayError(f"{type(error).__name__}: {error}")
            self._process = None
            text = f"the format of {vertex.name} failed: {error}"
            self._on_failed(action.vertex_id, Failure(text, error.remote_traceback), generation)

    async def _connect(self) -> FormatProcessGateway:
        """Raises RpcError when it cannot be started."""
        if self._process is None:
            service = self._job_master.rpc_service
            name = format_process(self._job_id)
            await service.kill(name)
            address = await service.spawn(
                EndpointSpec("FormatProcess", name, FORMAT_PROCESS_FACTORY)
            )
            self._process = await service.connect(address, FormatProcessGateway)
        return self._process
