"""The replicas of a model, for a task that calls them: finds them, and shares requests out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.models import ModelReplicaGateway
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.core.blobs import BlobKey
from flinkray.core.errors import (
    FlinkRayError,
    JobNotFoundError,
    JobSubmissionError,
    RpcError,
    RpcSerializationError,
)
from flinkray.core.ids import JobID, JobVertexID, KvStateID
from flinkray.core.kv_states import KvStatePlace, UnknownKvStateIdError
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import (
    HELD_MODEL,
    MODEL,
    ExponentialDelayRestart,
    Invokable,
    JobFile,
    JobGraph,
    JobVertex,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.state.thread_turns import SHORT_TURN, shorten_turns
from flinkray.streaming.functions.models import (
    ModelDescriptor,
    ModelFailedError,
    ModelUnavailableError,
)
from flinkray.streaming.operators.model_replicas import (
    UNDER_WAY_PER_REPLICA,
    ModelReplicas,
    Work,
    answered_within,
)

log = logging.getLogger(__name__)

_PAUSE = 0.2
"""Seconds between two looks for replicas while some are missing."""
_LONG_PAUSE = 2.0
"""Seconds between two looks for replicas while none is missing."""

_SUBMISSION_PATIENCE = 10.0
"""Seconds for which the submission of the replicas' job is repeated."""

_RESTARTS = ExponentialDelayRestart(
    initial_backoff=0.2, max_backoff=10.0, backoff_multiplier=2.0, reset_backoff_threshold=60.0
)


class ModelClients:
    """Connects the tasks of a process to replicas. The tasks share the services of the cluster."""

    def __init__(
        self,
        rpc_service: RpcService,
        arguments: ClusterArguments,
        fetch: Callable[[JobID, BlobKey, str | None], Awaitable[bytes]],
    ) -> None:
        """Create the object. *fetch* returns a blob of a job, from the blob server at an
        address."""
        self.rpc_service = rpc_service
        self.fetch = fetch
        self._arguments = arguments
        self._services: ClusterServices | None = None

    @property
    def services(self) -> ClusterServices:
        if self._services is None:
            self._services = ClusterServices.create(self.rpc_service, self._arguments)
        return self._services

    def replicas(
        self,
        deployed: DeployedTask,
        descriptor: ModelDescriptor,
        operator_id: str,
        on_failed: Callable[[BaseException], None],
    ) -> ClusterReplicas:
        """Return the replicas of a model for the task *deployed*. Called by the task's thread."""
        if self.rpc_service.has_own_process:
            shorten_turns(SHORT_TURN)  # so that answers do not wait for the task's code
        return ClusterReplicas(self, deployed, descriptor, operator_id, on_failed)

    async def close(self) -> None:
        """Stop looking for leaders."""
        services, self._services = self._services, None
        if services is not None:
            await services.high_availability.close()


@dataclass(eq=False, slots=True)
class _Replica:
    address: str
    replica: KvStateID
    gateway: ModelReplicaGateway | None = None
    under_way: int = 0
    """Number of requests of this task that it has not answered."""
    avoided_until: float = 0.0
    """Seconds of the event loop's clock until which others are preferred: it took too long."""


class ClusterReplicas(ModelReplicas):
    """Replicas in processes of the cluster. Everything but :meth:`run` and :meth:`close` happens on
    the event loop of the task's process."""

    def __init__(
        self,
        clients: ModelClients,
        deployed: DeployedTask,
        descriptor: ModelDescriptor,
        operator_id: str,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(on_failed)
        self._clients = clients
        self._rpc_service = clients.rpc_service
        self._deployed = deployed
        self._descriptor = descriptor
        self._operator_id = operator_id
        self._replicas: dict[KvStateID, _Replica] = {}
        self._lost: set[KvStateID] = set()
        """Replicas that have not answered; the cluster may not know of their end yet."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._look = asyncio.Event()
        self._model_job: JobID | None = None
        self._is_closed = False
        self.run(self._follow)

    def run(self, work: Work) -> None:
        self._rpc_service.loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Work) -> None:
        if not self._is_closed:
            self.begin(work)

    def close(self) -> None:
        self._rpc_service.loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._is_closed = True
        self.cancel()

    # --- requests -------------------------------------------------------------------------------

    async def infer(self, request: bytes, timeout: float) -> bytes:
        loop = self._rpc_service.loop
        begun = loop.time()
        while True:
            replica = await self._free_replica()
            replica.under_way += 1
            asked = loop.time()
            try:
                answer = await self._ask(replica, request, timeout)
            finally:
                replica.under_way -= 1
                self._wake()
            if answer is not None:
                self.note(asked - begun, loop.time() - asked)
                return answer

    async def _ask(self, replica: _Replica, request: bytes, timeout: float) -> bytes | None:
        """Return the replica's answer. None: the replica has ended before it saw the request."""
        try:
            if replica.gateway is None:
                connect = self._rpc_service.connect
                replica.gateway = await connect(replica.address, ModelReplicaGateway)
        except FlinkRayError as error:
            self._is_lost(replica, error)
            return None
        asking = asyncio.ensure_future(
            replica.gateway.infer(replica.replica, request, self.waiting > 0)
        )
        try:
            answer = await answered_within(timeout, self._descriptor.name, asking)
        except UnknownKvStateIdError as error:
            self._is_lost(replica, error)
            return None
        except ModelUnavailableError:
            replica.avoided_until = self._rpc_service.loop.time() + timeout
            raise
        except RpcSerializationError:  # also of a message that is too large
            raise
        except RpcError as error:
            self._is_lost(replica, error)
            text = f"a replica of the model {self._descriptor.name} died: {error}"
            raise ModelUnavailableError(text) from error
        return answer.contents

    def _preferred(self) -> _Replica | None:
        """Return the replica with the fewest requests, of those that answer in time, if any does.
        None: there are no replicas."""
        now = self._rpc_service.loop.time()
        return min(
            self._replicas.values(),
            key=lambda it: (it.avoided_until > now, it.under_way),
            default=None,
        )

    async def _free_replica(self) -> _Replica:
        """Return the preferred replica, once it has room."""
        self.waiting += 1
        try:
            while True:
                replica = self._preferred()
                if replica is not None and replica.under_way < UNDER_WAY_PER_REPLICA:
                    return replica
                waiter = self._rpc_service.loop.create_future()
                self._waiters.append(waiter)
                await waiter
        finally:
            self.waiting -= 1

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _is_lost(self, replica: _Replica, error: FlinkRayError) -> None:
        log.info("%s: %s at %s: %s", self._deployed.name, self._text, replica.address, error)
        self._lost.add(replica.replica)
        self._replicas.pop(replica.replica, None)
        self.number = len(self._replicas)
        self._look.set()

    @property
    def _text(self) -> str:
        return f"replica of the model {self._descriptor.name}"

    # --- looking for replicas -------------------------------------------------------------------

    async def _follow(self) -> None:
        """Keep the replicas known, and start them if they do not run.

        Raises:
            ModelFailedError: they have failed for good, or cannot be started.
        """
        graph: JobGraph | None = None
        since: float | None = None
        """When the job of the replicas could not be submitted first."""
        while True:
            try:
                graph = graph or await self._graph()
                dispatcher = await self._clients.services.connect_to_dispatcher()
                self._found(await self._look_up(dispatcher, graph))
                since = None
            except ModelFailedError:
                raise
            except JobSubmissionError as error:  # perhaps the storage fails now
                log.warning("%s: %s", self._deployed.name, error)
                now = self._rpc_service.clock.monotonic()
                since = now if since is None else since
                if now - since >= _SUBMISSION_PATIENCE:
                    text = f"the model {self._descriptor.name} cannot be started: {error}"
                    raise ModelFailedError(text) from error
            except FlinkRayError as error:  # a Dispatcher or a JobMaster that is about to go
                log.info("%s: looking for a %s: %s", self._deployed.name, self._text, error)
            await self._until_next_look()

    async def _look_up(
        self, dispatcher: DispatcherGateway, graph: JobGraph
    ) -> tuple[KvStatePlace, ...]:
        """Return where the replicas are. The job that runs them is started if there is none.

        Raises:
            ModelFailedError: the job that this task has used has failed or was cancelled.
        """
        user, known = self._deployed.job.job_id, self._model_job
        if known is not None:
            try:
                return await dispatcher.find_replicas(user, known)
            except JobNotFoundError as error:
                if error.job_id != known:
                    raise
        # a model is started once per job id
        graph = replace(graph, job_id=JobID.generate())
        self._model_job = await dispatcher.ensure_model(user, graph)
        if known is not None and known != self._model_job:
            await self._refuse_failed(dispatcher, known)
        return await dispatcher.find_replicas(user, self._model_job)

    async def _refuse_failed(self, dispatcher: DispatcherGateway, known: JobID) -> None:
        result = await dispatcher.request_job_result(known)
        model = f"the model {self._descriptor.name} (job {known})"
        if result.status is JobStatus.FAILED:
            raise ModelFailedError(f"{model} has failed: {result.failure}")
        raise ModelFailedError(f"{model} was cancelled")

    def _found(self, places: Sequence[KvStatePlace]) -> None:
        there = {place.kv_state_id: place.server_address for place in places}
        self._lost &= there.keys()
        known = self._replicas
        self._replicas = {
            replica: known.get(replica) or _Replica(address, replica)
            for replica, address in there.items()
            if replica not in self._lost
        }
        self.number = len(self._replicas)
        for _ in range(UNDER_WAY_PER_REPLICA * len(self._replicas.keys() - known.keys())):
            self._wake()

    async def _until_next_look(self) -> None:
        is_missing = self.number < self._descriptor.fewest or self._lost
        self._look.clear()
        looking = asyncio.ensure_future(self._look.wait())
        await asyncio.wait([looking], timeout=_PAUSE if is_missing else _LONG_PAUSE)
        looking.cancel()

    async def _graph(self) -> JobGraph:
        """Return the job that runs the replicas. It contains the files of the calling job, because
        it may outlive that job."""
        deployed, descriptor = self._deployed, self._descriptor
        key, name = descriptor.name, f"Model {descriptor.name}"
        if not descriptor.is_shared:
            key = f"{deployed.job.job_id}/{self._operator_id}"
            name = f"{name} of {deployed.job.job_name}"
        vertex = JobVertex(
            JobVertexID.generate(),
            descriptor.name,
            descriptor.most,
            descriptor.profile,
            Invokable(MODEL, descriptor.hosted(), {HELD_MODEL: key}),
            max_parallelism=descriptor.most,
            min_parallelism=descriptor.fewest,
            slot_sharing_group="replicas",
        )
        files = tuple([await self._with_content(file) for file in deployed.job.files])
        return JobGraph(JobID.generate(), name, (vertex,), _RESTARTS, files=files)

    async def _with_content(self, file: JobFile) -> JobFile:
        if not isinstance(file.content, BlobKey):
            return file
        job_id, server = self._deployed.job.job_id, self._deployed.blob_server
        return replace(file, content=await self._clients.fetch(job_id, file.content, server))
