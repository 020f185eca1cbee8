"""A Dispatcher that does what a test tells it, on a network in one process, and clients of it.

The Dispatcher is a real endpoint behind the wire format; what it knows lives in a :class:`World`,
so that it survives the Dispatcher, as a store would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import JobMasterToDispatcherRegistrationSuccess
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.checkpoint.errors import CheckpointNotFoundError
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.dispatcher_connection import DispatcherConnection
from flinkray.client.loop_thread import LoopThread
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import DuplicateJobSubmissionError, JobNotFoundError, JobStateError
from flinkray.core.ids import DispatcherId, JobID, JobMasterId, JobVertexID, LeaderSessionID
from flinkray.core.kv_states import KvStateLocation, KvStatePlace
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.ha import LeaderRetrievalService
from flinkray.ha.standalone import StandaloneLeaderRetrievalService
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    LocalNetwork,
    LocalRpcService,
    RegistrationRejection,
    RpcService,
)
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    Invokable,
    JobGraph,
    JobVertex,
    ParallelismBounds,
    ParallelismRange,
)
from flinkray.scheduler.reports.job_info import (
    ClusterNumbers,
    ClusterOverview,
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
    JobResult,
    JobSettings,
    MasterInfo,
    ModelInfo,
)
from flinkray.scheduler.shared.states import JobStatus

ADDRESS = "Dispatcher/dispatcher"
ZERO = LeaderSessionID.standalone()

Hook = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    """A hook that does nothing."""


async def _nothing_of(number: int) -> None:
    """The same of one that is told a number."""


@dataclass(eq=False)
class World:
    """What the scripted Dispatchers know and what they do."""

    network: LocalNetwork
    loop: LoopThread
    session: LeaderSessionID = ZERO
    jobs: dict[JobID, JobDetails] = field(default_factory=dict)
    results: dict[JobID, asyncio.Future[JobResult]] = field(default_factory=dict)
    submissions: int = 0
    dispatchers: int = 0
    """How many were started."""
    cancelled: list[JobID] = field(default_factory=list)
    resized: list[tuple[JobID, tuple[ParallelismBounds, ...], ParallelismRange | None]] = field(
        default_factory=list
    )
    """Each has two partitions."""
    graphs: list[JobGraph] = field(default_factory=list)
    """Those that were accepted."""
    before_submission: Hook = _nothing
    after_submission: Hook = _nothing
    """Called when a job is stored and not yet answered for."""
    on_heartbeat: Hook = _nothing
    heartbeats: list[tuple[JobID, ...]] = field(default_factory=list)
    """Of clients: the jobs that each was for."""
    on_result_request: Hook = _nothing
    on_progress_request: Hook = _nothing
    snapshots: list[SnapshotRequest] = field(default_factory=list)
    """That were asked for; the first ones may not be answered."""
    on_snapshot_request: Callable[[int], Awaitable[None]] = _nothing_of
    """Called with their number."""
    savepoints: list[str] = field(default_factory=list)
    after_disposal: Hook = _nothing

    async def crash(self) -> None:
        self.network.crash("Dispatcher")

    def end(
        self, job_id: JobID, status: JobStatus = JobStatus.FINISHED, **more: str | int | None
    ) -> None:
        """End a job; from the test's thread."""

        async def end() -> None:
            self.end_on_loop(job_id, status, **more)

        self.loop.run(end())

    def end_on_loop(
        self, job_id: JobID, status: JobStatus = JobStatus.FINISHED, **more: str | int | None
    ) -> None:
        """End a job, once; from a hook."""
        if self.results[job_id].done():
            return
        details = self.jobs[job_id]
        self.jobs[job_id] = replace(details, status=status, end_time=12.5)
        result = JobResult(job_id, details.name, status, 2.5, **more)  # type: ignore[arg-type]
        self.results[job_id].set_result(result)


_worlds: dict[str, World] = {}


@message
class ScriptArguments:
    """Which world a Dispatcher belongs to."""

    world: str


def create_dispatcher(rpc_service: RpcService, arguments: ScriptArguments) -> ScriptedDispatcher:
    return ScriptedDispatcher(rpc_service, _worlds[arguments.world])


class ScriptedDispatcher(FencedRpcEndpoint[DispatcherId], DispatcherGateway):
    """See the module's docstring."""

    def __init__(self, rpc_service: RpcService, world: World) -> None:
        super().__init__(rpc_service, "dispatcher", DispatcherId.of(world.session))
        self._world = world
        world.dispatchers += 1

    async def submit_job(self, job_graph: JobGraph) -> None:
        world = self._world
        world.submissions += 1
        await world.before_submission()
        if job_graph.job_id in world.jobs:
            raise DuplicateJobSubmissionError(job_graph.job_id, "submitted before")
        world.graphs.append(job_graph)
        world.results[job_graph.job_id] = asyncio.get_running_loop().create_future()
        world.jobs[job_graph.job_id] = JobDetails(
            job_graph.job_id, job_graph.name, JobStatus.RUNNING, 10.0, None, {"RUNNING": 10.0}, 0
        )
        await world.after_submission()

    async def ensure_spark_session(self, job_graph: JobGraph) -> JobID:
        raise NotImplementedError

    async def ensure_model(self, user: JobID, job_graph: JobGraph) -> JobID:
        raise NotImplementedError

    async def find_replicas(self, user: JobID, model: JobID) -> tuple[KvStatePlace, ...]:
        raise NotImplementedError

    async def list_jobs(self) -> tuple[JobOverview, ...]:
        return tuple(
            JobOverview(
                job.job_id,
                job.name,
                job.status,
                job.start_time,
                job.end_time,
                {"RUNNING": 2, "FINISHED": 1},
            )
            for job in self._world.jobs.values()
        )

    async def list_models(self) -> tuple[ModelInfo, ...]:
        profile = ResourceProfile(1.0, 2**30, {"GPU": 0.5})
        return tuple(
            ModelInfo(job.job_id, "Sentiment", job.status, 2, 1, 8, profile, (job.job_id,))
            for job in self._world.jobs.values()
        )

    async def request_job_status(self, job_id: JobID) -> JobStatus:
        return self._job(job_id).status

    async def request_job_progress(self, job_id: JobID) -> JobProgress:
        await self._world.on_progress_request()
        return JobProgress.of(self._job(job_id))

    async def request_job_exceptions(self, job_id: JobID) -> tuple[ExceptionEntry, ...]:
        return self._job(job_id).exceptions

    async def request_job_details(self, job_id: JobID) -> JobDetails:
        return self._job(job_id)

    async def request_job_settings(self, job_id: JobID) -> JobSettings:
        raise JobNotFoundError(job_id)

    async def request_job_result(self, job_id: JobID) -> JobResult:
        self._job(job_id)
        await self._world.on_result_request()
        return await asyncio.shield(self._world.results[job_id])

    async def cancel_job(self, job_id: JobID) -> None:
        if self._job(job_id).status is JobStatus.FINISHED:
            raise JobStateError(job_id, "has finished and cannot be cancelled")
        self._world.cancelled.append(job_id)

    async def heartbeat_from_client(self, job_ids: tuple[JobID, ...]) -> None:
        self._world.heartbeats.append(job_ids)
        await self._world.on_heartbeat()

    async def resize_job(
        self,
        job_id: JobID,
        bounds: tuple[ParallelismBounds, ...],
        others: ParallelismRange | None = None,
    ) -> None:
        self._job(job_id)
        self._world.resized.append((job_id, bounds, others))

    async def take_snapshot(self, job_id: JobID, request: SnapshotRequest) -> SnapshotTaken:
        self._job(job_id)
        self._world.snapshots.append(request)
        await self._world.on_snapshot_request(len(self._world.snapshots))
        return SnapshotTaken(f"{request.target_directory}/savepoint-1", ("Map",))

    async def request_savepoint_directories(self) -> tuple[str, ...]:
        return ("/",)

    async def dispose_savepoint(self, path: str) -> None:
        if path not in self._world.savepoints:
            raise CheckpointNotFoundError(path, "there is no such directory")
        self._world.savepoints.remove(path)
        await self._world.after_disposal()

    async def request_cluster_numbers(self) -> ClusterNumbers:
        return ClusterNumbers("0.1.0", 0, 0, 0)

    async def request_cluster_overview(self) -> ClusterOverview:
        profile = ResourceProfile(2.0, 2**30)
        masters = (
            MasterInfo("Dispatcher", "Dispatcher-2", ("Dispatcher", "Dispatcher-3")),
            MasterInfo("ResourceManager", "ResourceManager", ()),
        )
        url = "http://127.0.0.1:8265"
        jobs = await self.list_jobs()
        return ClusterOverview("0.1.0", (), 0, 0, jobs, profile, profile, url, masters)

    async def shut_down_cluster(self) -> None:
        raise AssertionError("no test asks for it")

    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        raise AssertionError("no job has state")

    async def request_source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        raise AssertionError("there are no JobMasters")

    async def register_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, job_master_address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationRejection:
        raise AssertionError("there are no JobMasters")

    async def job_overview_changed(
        self, job_id: JobID, job_master_id: JobMasterId, overview_number: int
    ) -> None:
        raise AssertionError("there are no JobMasters")

    async def heartbeat_from_job_master(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        overview_number: int,
        has_deployed: bool = False,
    ) -> None:
        raise AssertionError("there are no JobMasters")

    async def job_reached_terminal_state(
        self, job_id: JobID, job_master_id: JobMasterId, result: JobResult, details: JobDetails
    ) -> None:
        raise AssertionError("there are no JobMasters")

    def _job(self, job_id: JobID) -> JobDetails:
        if job_id not in self._world.jobs:
            raise JobNotFoundError(job_id)
        return self._world.jobs[job_id]


@contextmanager
def scripted_cluster(
    retriever: LeaderRetrievalService | None = None,
    *,
    unreachable_limit: float = 60.0,
    configuration: ReadableConfig | None = None,
) -> Iterator[tuple[World, ClusterClient]]:
    """A network with a Dispatcher that is restarted when it dies, and a client of it."""
    loop = LoopThread("scripted cluster")
    retriever = retriever or StandaloneLeaderRetrievalService(ADDRESS, ZERO)

    async def open_client() -> tuple[World, ClusterClient]:
        network = LocalNetwork()
        world = World(network, loop)
        name = f"world {id(world)}"
        _worlds[name] = world
        rpc_service = LocalRpcService("client", network)
        connection = DispatcherConnection(
            rpc_service, retriever, "test", unreachable_limit=unreachable_limit
        )

        async def close() -> None:
            del _worlds[name]
            await connection.close()
            await network.close()

        client = ClusterClient(
            loop, connection, "test", on_close=close, configuration=configuration
        )
        spec = EndpointSpec(
            kind="Dispatcher",
            name="Dispatcher",
            factory=f"{__name__}:create_dispatcher",
            arguments=ScriptArguments(name),
            detached=True,
            max_restarts=-1,
        )
        await rpc_service.spawn(spec)
        await connection.open()
        return world, client

    world, client = loop.run(open_client())
    with client:
        yield world, client


def job_graph(name: str = "a job") -> JobGraph:
    vertex = JobVertex(
        JobVertexID.generate(), name, 1, ResourceProfile(1.0, 2**30), Invokable(SPARK, b"code")
    )
    return JobGraph(JobID.generate(), name, (vertex,))
