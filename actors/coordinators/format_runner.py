"""How a JobMaster has formats prepare and commit: in a process that may run user code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flinkray.actors.coordinators.user_code_process import UserCodeProcessConnection
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobVertexID
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.job.job_scheduler_actions import FinalizeOnMaster, InitializeOnMaster
from flinkray.scheduler.shared.failure import Failure


class FormatRunner:
    """Lives on the JobMaster's main thread."""

    def __init__(
        self,
        job_master: RpcEndpoint,
        graph: JobGraph,
        process: UserCodeProcessConnection,
        *,
        on_initialized: Callable[[JobVertexID, Sequence[InputSplit]], None],
        on_finalized: Callable[[JobVertexID, int], None],
        on_failed: Callable[[JobVertexID, Failure, int], None],
    ) -> None:
        self._job_master = job_master
        self._vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
        self._on_initialized = on_initialized
        self._on_finalized = on_finalized
        self._on_failed = on_failed
        self._process = process

    def carry_out(self, action: InitializeOnMaster | FinalizeOnMaster) -> None:
        """Begin; one of the callbacks follows."""
        self._job_master.create_task(self._carry_out(action), "have a format work")

    async def _carry_out(self, action: InitializeOnMaster | FinalizeOnMaster) -> None:
        vertex = self._vertices[action.vertex_id]
        parallelism = vertex.parallelism
        generation = action.generation if isinstance(action, FinalizeOnMaster) else 0
        try:
            process = await self._process.get()
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
            self._process.failed()
            text = f"the format of {vertex.name} failed: {error}"
            self._on_failed(action.vertex_id, Failure(text, error.remote_traceback), generation)
