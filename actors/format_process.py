"""The process in which a job's input and output formats do their work on the master's behalf."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from flinkray.core.ids import JobVertexID
from flinkray.rpc import RpcEndpoint, RpcGateway, RpcService, ask_timeout
from flinkray.scheduler.input_splits import InputSplit
from flinkray.scheduler.job_graph import MasterFormat
from flinkray.spark.user_code import load_function

FORMAT_PROCESS_FACTORY = "flinkray.actors.format_process:create_format_process"


class FormatProcessGateway(RpcGateway):
    """Runs the master's part of formats.  Their code is a pickled function without arguments that
    makes an object of the user's.

    Those of their methods ``initialize_global(parallelism)``, ``create_input_splits(minimum)`` and
    ``finalize_global(parallelism)`` are called that they have.
    """

    @abstractmethod
    @ask_timeout(None)
    async def initialize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> tuple[InputSplit, ...]:
        """Prepare, and divide the input.  Raises whatever the format raises."""

    @abstractmethod
    @ask_timeout(None)
    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        """Commit.  Raises whatever the format raises."""


def create_format_process(rpc_service: RpcService, arguments: None) -> FormatProcess:
    """Factory of the process."""
    return FormatProcess(rpc_service, "formats")


class FormatProcess(RpcEndpoint, FormatProcessGateway):
    """Formats run in threads: they may take their time.  Each is unpickled once."""

    def __init__(self, rpc_service: RpcService, endpoint_id: str) -> None:
        super().__init__(rpc_service, endpoint_id)
        self._formats: dict[JobVertexID, Any] = {}

    async def initialize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> tuple[InputSplit, ...]:
        def work() -> Sequence[InputSplit]:
            user_format = self._load(vertex_id, master_format)
            prepare = getattr(user_format, "initialize_global", None)
            if prepare is not None:
                prepare(parallelism)
            if not master_format.makes_splits:
                return ()
            splits: Sequence[InputSplit] = user_format.create_input_splits(parallelism)
            return splits

        return tuple(await self.rpc_service.run_blocking(work))

    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        def work() -> None:
            self._load(vertex_id, master_format).finalize_global(parallelism)

        await self.rpc_service.run_blocking(work)

    def _load(self, vertex_id: JobVertexID, master_format: MasterFormat) -> Any:
        if vertex_id not in self._formats:
            new_format: Callable[[], Any] = load_function(master_format.code)  # type: ignore[assignment]
            self._formats[vertex_id] = new_format()
        return self._formats[vertex_id]
