"""The process that runs the global methods of a job's formats for the JobMaster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from flinkray.actors.shared.user_calls import call_user_code
from flinkray.core.ids import JobMasterId, JobVertexID
from flinkray.rpc import (
    FencedRpcEndpoint,
    RpcService,
    ask_timeout,
)
from flinkray.rpc.gateway import FencedRpcGateway
from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.user_code import load_function

MASTER_FORMATS_FACTORY = "flinkray.actors.coordinators.master_formats:create_master_formats"


class MasterFormatsGateway(FencedRpcGateway):
    """Runs the global methods of a job's formats. Fenced by the id of the job's JobMaster.

    A format is a pickled function without arguments that creates a user's object. Its methods are
    called, if present: ``initialize_global(parallelism)`` and ``finalize_global(parallelism)``.
    """

    @abstractmethod
    async def request_heartbeat(self) -> None:
        """Answer at once, whatever the user's code does at the moment.
        The answer is the heartbeat.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the process."""

    @abstractmethod
    @ask_timeout(None)
    async def initialize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        """Prepare the format. Raises whatever the format raises."""

    @abstractmethod
    @ask_timeout(None)
    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        """Commit the format's output. Raises whatever the format raises."""


def create_master_formats(rpc_service: RpcService, job_master_id: JobMasterId) -> FormatsEndpoint:
    """Create the endpoint that runs the formats for the JobMaster *job_master_id*."""
    return FormatsEndpoint(rpc_service, "formats", job_master_id)


class FormatsEndpoint(FencedRpcEndpoint[JobMasterId], MasterFormatsGateway):
    """Runs the formats in threads, because they may take long. Unpickles each format once."""

    def __init__(
        self, rpc_service: RpcService, endpoint_id: str, job_master_id: JobMasterId
    ) -> None:
        super().__init__(rpc_service, endpoint_id, job_master_id)
        self._formats: dict[JobVertexID, Any] = {}

    async def request_heartbeat(self) -> None:
        """Do nothing: the answer itself is the heartbeat."""

    async def stop(self) -> None:
        self.close()

    async def initialize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        def work() -> None:
            user_format = self._load(vertex_id, master_format)
            prepare = getattr(user_format, "initialize_global", None)
            if prepare is not None:
                prepare(parallelism)

        await call_user_code(self.rpc_service, work)

    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        def work() -> None:
            self._load(vertex_id, master_format).finalize_global(parallelism)

        await call_user_code(self.rpc_service, work)

    def _load(self, vertex_id: JobVertexID, master_format: MasterFormat) -> Any:
        if vertex_id not in self._formats:
            new_format: Callable[[], Any] = load_function(master_format.code)
            self._formats[vertex_id] = new_format()
        return self._formats[vertex_id]
