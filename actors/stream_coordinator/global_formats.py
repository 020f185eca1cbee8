"""Prepares and finishes the outputs of a job's output formats, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

from flinkray.actors.gateways.stream_coordinator import VertexCode
from flinkray.actors.shared.chain_code import ChainCode
from flinkray.actors.shared.user_calls import call_user_code
from flinkray.core.blobs import BlobKey
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import JobVertexID
from flinkray.core.recurring_errors import outlook_of
from flinkray.rpc import RpcService
from flinkray.scheduler.job.coordinator_events import GlobalFormatsCall
from flinkray.streaming.operator_errors import OperatorError, operator_error
from flinkray.streaming.program.chain_plan import global_formats
from flinkray.streaming.sinks.output_format import GlobalFormat
from flinkray.user_code import load_function

T = TypeVar("T")


class GlobalFormats:
    """Calls the methods of output formats that are called once for all subtasks, one after the
    other. A repeated call is carried out once.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        vertices: Iterable[VertexCode],
        fetch: Callable[[bytes | BlobKey, str | None], Awaitable[bytes]],
        on_failed: Callable[[FlinkRayError], None],
    ) -> None:
        """Create the object without loading the formats.

        Args:
            fetch: makes the job's files importable and returns the code, given the address of a
                blob server. Raises RpcError if that is not possible now, and FlinkRayError or
                OSError if it is not possible.
            on_failed: called with the error of a format.
        """
        self._rpc_service = rpc_service
        self._vertices = {vertex.vertex_id: vertex for vertex in vertices}
        self._fetch = fetch
        self._on_failed = on_failed
        self._formats: dict[JobVertexID, list[GlobalFormat]] = {}
        self._turn = asyncio.Lock()
        self._done: GlobalFormatsCall | None = None
        """The call that was carried out last."""
        self._failure: OperatorError | None = None
        """The error of a format. After it no format is called any more."""

    async def call(self, call: GlobalFormatsCall, blob_server: str | None) -> None:
        """Prepare or finish the outputs of all formats, as *call* says.

        Raises:
            OperatorError: a format has failed, or cannot be loaded.
            RpcError: the code of a format cannot be fetched now.
        """
        async with self._turn:
            if self._failure is not None:
                raise self._failure
            if call == self._done:
                return
            for vertex_id, parallelism in call.parallelism:
                for one in await self._formats_of(self._vertices[vertex_id], blob_server):
                    method = one.finalize if call.is_end else one.initialize
                    await self._run(one.name, partial(method, parallelism))
            self._done = call

    async def _formats_of(self, vertex: VertexCode, blob_server: str | None) -> list[GlobalFormat]:
        formats = self._formats.get(vertex.vertex_id)
        if formats is None:
            name = f"output formats of {vertex.name}"
            try:
                code = await self._fetch(vertex.code, blob_server)
            except RpcError:
                raise
            except (FlinkRayError, OSError) as error:
                raise self._failed(_described(name, error)) from error
            formats = await self._run(name, partial(_load, code))
            self._formats[vertex.vertex_id] = formats
        return formats

    async def _run(self, name: str, function: Callable[[], T]) -> T:
        try:
            return await call_user_code(self._rpc_service, function, partial(_described, name))
        except OperatorError as error:
            raise self._failed(error) from None

    def _failed(self, error: OperatorError) -> OperatorError:
        self._failure = error
        self._on_failed(error)
        return error


def _described(name: str, error: BaseException) -> OperatorError:
    told = operator_error(error, name)
    # determined now: methods of its class may do anything when they are called later
    told.outlook = outlook_of(error)
    return told


def _load(code: bytes) -> list[GlobalFormat]:
    chain = load_function(code)
    assert isinstance(chain, ChainCode)
    return global_formats(chain.load())
