"""How a JobMaster keeps the coordinator of its stream job running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_FACTORY,
    StreamCoordinatorArguments,
    StreamCoordinatorGateway,
    VertexCode,
    stream_coordinator_process,
)
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph
from flinkray.scheduler.shared.failure import Failure

log = logging.getLogger(__name__)

_RESTART_PAUSE = 0.5
"""Seconds after a failure until the next coordinator is started."""


class StreamCoordinatorRunner:
    """Lives on the JobMaster's main thread.  A coordinator that fails is replaced; with it the
    progress of all sources is lost, so the whole job begins anew."""

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        on_failed: Callable[[Failure], None],
    ) -> None:
        self._job_master = job_master
        self._on_failed = on_failed
        self._process_name = stream_coordinator_process(graph.job_id)
        vertices = tuple(
            VertexCode(vertex.vertex_id, vertex.name, vertex.invokable.code)
            for vertex in graph.vertices
            if vertex.invokable.kind == STREAM and not vertex.inputs
        )
        self._arguments = StreamCoordinatorArguments(
            graph.job_id, job_master.fencing_token, vertices, graph.files
        )

    def start(self) -> None:
        """Begin; tasks look for the coordinator until it is there."""
        if self._arguments.vertices:
            self._job_master.create_task(self._run(), f"run {self._process_name}")

    async def _run(self) -> None:
        service = self._job_master.rpc_service
        spec = EndpointSpec(
            "StreamCoordinator",
            self._process_name,
            STREAM_COORDINATOR_FACTORY,
            self._arguments,
            may_take_over=True,
        )
        while True:
            await service.kill(self._process_name)  # that of an earlier JobMaster, or a failed one
            try:
                address = await service.spawn(spec)
                coordinator = await service.connect(address, StreamCoordinatorGateway)
                await coordinator.until_failed()
            except FlinkRayError as error:
                if isinstance(error, RpcError):
                    text = f"the coordinator of the job's sources died: {error}"
                else:
                    text = str(error)
                log.warning("%s: %s", self._process_name, text)
                self._on_failed(Failure(text, error.remote_traceback))
            await asyncio.sleep(_RESTART_PAUSE)
