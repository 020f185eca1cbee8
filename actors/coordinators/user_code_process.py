"""The process that runs a job's user code on behalf of the JobMaster: formats and aggregates."""

from __future__ import annotations

import asyncio
import pickle
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from flinkray.actors.gateways.job_processes import job_process
from flinkray.actors.shared.user_calls import call_user_code
from flinkray.core import cloud_pickle
from flinkray.core.ids import JobID, JobMasterId, JobVertexID
from flinkray.core.message import message
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    RpcService,
    ask_timeout,
)
from flinkray.rpc.gateway import FencedRpcGateway
from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.user_code import load_function

USER_CODE_PROCESS_FACTORY = (
    "flinkray.actors.coordinators.user_code_process:create_user_code_process"
)


@message
class AggregateStep:
    """Result of adding one value to an aggregate: new accumulator and new result, both pickled."""

    accumulator: bytes
    result: bytes


class UserCodeProcessGateway(FencedRpcGateway):
    """Runs user code of the master's part of a job. Fenced by the id of its JobMaster.

    A format is a pickled function without arguments that creates a user's object. Its methods are
    called, if present: ``initialize_global(parallelism)``, ``create_input_splits(minimum)`` and
    ``finalize_global(parallelism)``.
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
    ) -> tuple[InputSplit, ...]:
        """Prepare the format and return the input's splits. Raises whatever the format raises."""

    @abstractmethod
    @ask_timeout(None)
    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        """Commit the format's output. Raises whatever the format raises."""

    @abstractmethod
    @ask_timeout(None)
    async def aggregate(
        self, function: bytes, accumulator: bytes | None, value: bytes
    ) -> AggregateStep:
        """Add a pickled value to a pickled accumulator (None: a new one).
        Returns the new accumulator and the aggregate's result.

        *function* is pickled; called with None, it creates an
        :class:`~flinkray.streaming.functions.functions.AggregateFunction`. Raises whatever this
        function raises.
        """


def create_user_code_process(
    rpc_service: RpcService, job_master_id: JobMasterId
) -> UserCodeProcess:
    """Create the endpoint of a process that runs user code for the JobMaster *job_master_id*."""
    return UserCodeProcess(rpc_service, "usercode", job_master_id)


class UserCodeProcess(FencedRpcEndpoint[JobMasterId], UserCodeProcessGateway):
    """Runs the user code in threads, because it may take long.
    Each format and each aggregate function is unpickled once.
    """

    def __init__(
        self, rpc_service: RpcService, endpoint_id: str, job_master_id: JobMasterId
    ) -> None:
        super().__init__(rpc_service, endpoint_id, job_master_id)
        self._formats: dict[JobVertexID, Any] = {}
        self._aggregates: dict[bytes, Any] = {}

    async def request_heartbeat(self) -> None:
        """Do nothing: the answer itself is the heartbeat."""

    async def stop(self) -> None:
        self.close()

    async def initialize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> tuple[InputSplit, ...]:
        def work() -> tuple[InputSplit, ...]:
            user_format = self._load(vertex_id, master_format)
            prepare = getattr(user_format, "initialize_global", None)
            if prepare is not None:
                prepare(parallelism)
            if not master_format.makes_splits:
                return ()
            return tuple(user_format.create_input_splits(parallelism))

        return await call_user_code(self.rpc_service, work)

    async def finalize(
        self, vertex_id: JobVertexID, master_format: MasterFormat, parallelism: int
    ) -> None:
        def work() -> None:
            self._load(vertex_id, master_format).finalize_global(parallelism)

        await call_user_code(self.rpc_service, work)

    async def aggregate(
        self, function: bytes, accumulator: bytes | None, value: bytes
    ) -> AggregateStep:
        def work() -> AggregateStep:
            if function not in self._aggregates:
                self._aggregates[function] = load_function(function)(None)
            aggregate = self._aggregates[function]
            if accumulator is None:
                before = aggregate.create_accumulator()
            else:
                before = pickle.loads(accumulator)
            after = aggregate.add(pickle.loads(value), before)
            return AggregateStep(
                cloud_pickle.dumps(after), cloud_pickle.dumps(aggregate.get_result(after))
            )

        return await call_user_code(self.rpc_service, work)

    def _load(self, vertex_id: JobVertexID, master_format: MasterFormat) -> Any:
        if vertex_id not in self._formats:
            new_format: Callable[[], Any] = load_function(master_format.code)
            self._formats[vertex_id] = new_format()
        return self._formats[vertex_id]


class UserCodeProcessConnection:
    """A JobMaster's connection to its user code process.
    The process is started on first use and dies with the JobMaster. A failed process is replaced on
    the next use.
    """

    def __init__(self, job_master: FencedRpcEndpoint[JobMasterId], job_id: JobID) -> None:
        self._job_master = job_master
        self._job_id = job_id
        self._process: asyncio.Future[UserCodeProcessGateway] | None = None

    async def get(self) -> UserCodeProcessGateway:
        """Return the gateway of the process. Raises RpcError if the process cannot be started."""
        if self._process is None:
            self._process = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._process)

    def failed(self) -> None:
        """Forget the present process, which has failed. The next :meth:`get` starts another one."""
        self._process = None

    async def _start(self) -> UserCodeProcessGateway:
        service = self._job_master.rpc_service
        token = self._job_master.fencing_token
        name = job_process("UserCodeProcess", self._job_id, token)
        await service.kill(name)
        spec = EndpointSpec("UserCodeProcess", name, USER_CODE_PROCESS_FACTORY, token)
        return await service.connect(await service.spawn(spec), UserCodeProcessGateway, token)
