"""The Dispatcher: accepts jobs, keeps a JobMaster alive for each, and remembers how jobs ended.

A job's graph is stored before its submission is answered, and its result is stored before the job
is cleaned up. So a new Dispatcher continues where its predecessor was killed: live JobMasters
register at it, dead JobMasters are replaced, and ended jobs are only cleaned up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from flinkray.actors.dispatcher.job_blobs import JobBlobs
from flinkray.actors.dispatcher.job_cancelling import JobCancelling
from flinkray.actors.dispatcher.job_cleanup import JobCleanup
from flinkray.actors.dispatcher.job_history import JobHistory
from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.job_queries import JobQueries
from flinkray.actors.dispatcher.job_resizing import JobResizing
from flinkray.actors.dispatcher.job_snapshots import JobSnapshots, taken_at_the_end
from flinkray.actors.dispatcher.managed_job import JobMasterDeaths, ManagedJob
from flinkray.actors.dispatcher.model_jobs import ModelJobs, model_held_by
from flinkray.actors.dispatcher.retry_until_done import retry_until_done
from flinkray.actors.gateways import DispatcherGateway
from flinkray.actors.gateways.messages import (
    ArchivedJob,
    ClusterArguments,
    JobMasterToDispatcherRegistrationSuccess,
    StoredJob,
)
from flinkray.actors.gateways.models import REPLICAS
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.shared.checkpoint_storage import checkpoint_storage_of
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.exported_metrics import CLUSTER, samples_of, state_of_job
from flinkray.actors.shared.high_availability import has_elections
from flinkray.actors.shared.leadership import Leadership, lead_in_turn
from flinkray.actors.shared.settings import heartbeat_settings
from flinkray.actors.shared.traces import Traces
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.blob import BlobNotFoundError
from flinkray.core.errors import (
    ConfigurationError,
    DuplicateJobSubmissionError,
    FlinkRayError,
    JobExecutionError,
    JobNotFoundError,
    JobStateError,
    JobSubmissionError,
    RecipientUnreachableError,
    UnreadableRecordError,
)
from flinkray.core.ids import DispatcherId, JobID, JobMasterId
from flinkray.core.kv_states import (
    KvStateLocation,
    KvStatePlace,
    UnknownKvStateLocationError,
)
from flinkray.core.options import (
    PRESTARTED_PROCESSES,
    ROLES_PER_PRESTARTED_PROCESS,
    SHUTDOWN_GRACE,
)
from flinkray.core.version import VERSION
from flinkray.ha import StoreError
from flinkray.rpc import (
    FencedRpcEndpoint,
    MetricSample,
    RegistrationFailure,
    RegistrationRejection,
    RpcEndpoint,
    RpcService,
    split_address,
)
from flinkray.scheduler.elastic.parallelism import bounds_for
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds, ParallelismRange
from flinkray.scheduler.graph.validation import validate
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
from flinkray.scheduler.reports.spans import JOB_SUBMISSION, Attribute, Span, brief
from flinkray.scheduler.shared.states import JobStatus
from flinkray.spark.session_requests import session_held_by

log = logging.getLogger(__name__)

JOB_MASTER_FACTORY = "flinkray.actors.job_master.endpoint:create_job_master"

PRESTARTED_IMPORTS: tuple[str, ...] = (
    "flinkray.actors.job_master.endpoint",
    "flinkray.actors.slot_pool.endpoint",
)
"""Modules that prestarted processes have loaded while they wait for a role."""
IMPORTED_AHEAD: tuple[str, ...] = ("flinkray.actors.stream_coordinator.endpoint",)
"""Modules that prestarted processes load later than PRESTARTED_IMPORTS.
Loading them takes as long as loading all the others.
"""

_CLEAN_UP_PATIENCE = 10.0
"""Seconds after a job's end after which clients get its result in any case.
Its resources may not be back by then.
"""
_SHOWN_FOR = 900.0
"""Seconds for which the metrics show the state of an ended job."""
_MOST_SHOWN = 100
"""Largest number of ended jobs whose states the metrics show."""
_REFUSAL_PATIENCE = 5.0
"""Seconds spent on removing the graph of a refused job.
After that its submitter is told that the graph may still be stored.
"""


async def create_dispatcher(rpc_service: RpcService, arguments: ClusterArguments) -> RpcEndpoint:
    """Create the main endpoint of a Dispatcher's process: the Dispatcher, or a StandbyMaster if
    several processes may contend for the leadership. A Dispatcher is created once it leads, and
    then recovers the jobs of its predecessor."""
    services = ClusterServices.create(rpc_service, arguments)

    async def new_leader(leadership: Leadership) -> Dispatcher:
        dispatcher = Dispatcher(rpc_service, services, leadership)
        await dispatcher.recover()
        return dispatcher

    election = services.high_availability.get_dispatcher_leader_election()
    return await lead_in_turn(services, election, new_leader)


class Dispatcher(FencedRpcEndpoint[DispatcherId], DispatcherGateway):
    """Endpoint of the Dispatcher. Most of its work is done by classes in the other modules here."""

    def __init__(
        self,
        rpc_service: RpcService,
        services: ClusterServices,
        leadership: Leadership,
        *,
        job_master_factory: str = JOB_MASTER_FACTORY,
    ) -> None:
        super().__init__(rpc_service, "dispatcher", DispatcherId.of(leadership.session_id))
        self._leadership = leadership
        self._services = services
        self._graphs = services.high_availability.get_job_graph_store(StoredJob)
        self._results = services.high_availability.get_job_result_store(ArchivedJob)
        self._jobs: dict[JobID, ManagedJob] = {}
        self._ended = JobHistory(
            self, self._results, services.configuration, services.arguments.storage_dir
        )
        self._job_masters = JobMasterSupervision(
            self,
            services.arguments,
            leadership,
            job_master_factory,
            job=self._jobs.get,
            on_terminated=self._job_master_terminated,
            on_unstartable=self._job_master_unstartable,
        )
        self._unreadable: dict[JobID, UnreadableRecordError] = {}
        """Jobs whose stored graph or result could not be read.
        They are not run, and none of their data is deleted.
        """
        self._queries = JobQueries(self._jobs, self._ended, self._unreadable, self.clock.monotonic)
        self._resizing = JobResizing(self, self._graphs, self._leave_to_successor)
        self._storage_of_users = UserStorage(self.rpc_service)
        self._snapshots = JobSnapshots(self, self._jobs, self._storage_of_users)
        self._traces = Traces(services.configuration)
        self._cancelling = JobCancelling(self, self._graphs, self._job_masters, self._jobs.get)
        self._models = ModelJobs(self, self._jobs, self._cancelling)
        self._shutting_down = False
        self._gives_up_jobs = False
        """Whether a job whose JobMaster dies fails instead of getting another JobMaster."""

    # --- life cycle -------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take over the stores of jobs from the last Dispatcher, and read them.
        Called once, before the endpoint is started.
        """
        # first, because a graph is removed once its job's result is stored
        await self._results.take_over()
        await self._graphs.take_over()
        clean = await self._results.get_clean_results()
        dirty = await self._results.get_dirty_results()
        graphs = await self._graphs.recover_job_graphs()
        for unreadable in (*graphs.unreadable, *dirty.unreadable, *clean.unreadable):
            log.error("%s; it is kept, and so are the job's blobs", unreadable)
            self._unreadable[unreadable.job_id] = unreadable
        self._blobs = await JobBlobs.create(self._services, self._leadership)
        self._cleanup = JobCleanup(
            self.fencing_token,
            self._services,
            self._graphs,
            self._results,
            self._blobs,
            self._job_masters,
            self._storage_of_users,
        )
        await self._blobs.retain_recovered(stored.graph for stored in graphs.records)
        for ended in (*clean.records, *dirty.records):
            # only its graph is unreadable, which is not needed any more
            self._unreadable.pop(ended.job_id, None)
        for job_id in self._unreadable:
            await self._blobs.retain_all(job_id)
        self._ended.recover(clean.records)
        stored_graphs = {stored.job_id: stored.graph for stored in graphs.records}
        for ended in dirty.records:
            graph = stored_graphs.get(ended.job_id)  # tells where the job has left data
            if graph is None:  # an earlier clean-up has already removed it
                graph = JobGraph(ended.job_id, ended.result.name, ())
            self._manage_stored(graph, ended.details.start_time).outcome = ended
        for stored in graphs.records:
            known = stored.job_id in self._jobs or stored.job_id in self._ended
            # a job with an unreadable record may have ended
            if not known and stored.job_id not in self._unreadable:
                job = self._manage_stored(stored.graph, stored.start_time)
                job.has_run = stored.has_run
                job.cancel_requested = stored.cancel_requested
                job.cancel_cause = stored.cancel_cause

    async def on_start(self) -> None:
        self.export_metrics(self._metrics)
        self._blobs.start()
        prestarted = self._services.configuration.get(PRESTARTED_PROCESSES)
        imports = PRESTARTED_IMPORTS
        if has_elections(self._services.configuration):
            imports += ("flinkray.ha.zookeeper",)
        roles = self._services.configuration.get(ROLES_PER_PRESTARTED_PROCESS)
        self.rpc_service.keep_prestarted(prestarted, imports, IMPORTED_AHEAD, roles)
        self._ended.start()
        self._job_masters.begin(heartbeat_settings(self._services.configuration))
        for job in self._jobs.values():
            if job.outcome is not None:
                self.create_task(self._clean_up(job))
            else:
                log.info("%s: looking for the JobMaster of a previous Dispatcher", job.text)
                self._job_masters.watch(job, None)
                self._cancelling.await_client(job)
        self._models.start()
        await self._leadership.confirm(self)

    async def on_stop(self) -> None:
        self._cancelling.stop()
        self._job_masters.stop()
        self._ended.stop()
        await self._blobs.close()  # deletes unfinished uploads, while still allowed to
        await self._leadership.give_up()
        await self._traces.flush()
        await self._services.high_availability.close()

    def _metrics(self) -> Iterator[MetricSample]:
        running = sum(not job.status.is_globally_terminal for job in self._jobs.values())
        yield from samples_of(CLUSTER, {"numRunningJobs": running}, {})
        for job in self._jobs.values():
            # no JobMaster reports the state
            if job.gateway is None or job.outcome is not None:
                yield from state_of_job(job.graph.name, job.job_id, job.status)
        for ended in self._ended.newest(_SHOWN_FOR, _MOST_SHOWN):
            yield from state_of_job(ended.result.name, ended.job_id, ended.result.status)

    def _manage(self, graph: JobGraph, start_time: float) -> ManagedJob:
        loop = asyncio.get_running_loop()
        job = ManagedJob(
            graph,
            start_time,
            JobMasterDeaths(self._services.configuration),
            loop.create_future(),
            loop.create_future(),
            loop.create_future(),
            self._services.configuration,
        )
        self._jobs[graph.job_id] = job
        return job

    def _manage_stored(self, graph: JobGraph, start_time: float) -> ManagedJob:
        job = self._manage(graph, start_time)
        job.accepted.set_result(None)
        job.has_had_job_masters = True
        return job

    # --- for clients ------------------------------------------------------------------------------

    async def submit_job(self, job_graph: JobGraph) -> None:
        begin, refusal = self.clock.time(), None
        try:
            await self._accept(job_graph)
        except FlinkRayError as error:
            refusal = brief(str(error))
            raise
        finally:
            size: dict[str, Attribute] = {
                "numVertices": len(job_graph.vertices),
                "numTasks": sum(vertex.parallelism for vertex in job_graph.vertices),
            }
            span = Span(JOB_SUBMISSION, begin, self.clock.time(), size, refusal)
            self._traces.tell([span], job_graph.job_id, job_graph.name, of_call=True)

    async def _accept(self, job_graph: JobGraph) -> None:
        validate(job_graph)
        job_id = job_graph.job_id
        try:
            self._services.configuration.with_values(job_graph.configuration)
            checkpoint_storage_of(self._services, job_graph)
        # options that are valid one by one may contradict each other
        except ConfigurationError as error:
            raise JobSubmissionError(job_id, str(error)) from error
        if self._shutting_down:
            raise JobSubmissionError(job_id, "the cluster is shutting down")
        if (unreadable := self._unreadable.get(job_id)) is not None:
            raise unreadable
        if job_id not in self._jobs and job_id not in self._ended:
            await self._snapshots.check_given(job_graph)
        if (known := self._jobs.get(job_id)) is not None:
            await asyncio.shield(known.accepted)  # raises if the earlier submission is refused
        if known is not None or job_id in self._ended:
            raise DuplicateJobSubmissionError(
                job_id, "a job of this id was submitted before; submit the graph under a new id"
            )
        job = self._manage(job_graph, self.clock.time())
        try:
            await self._blobs.retain(job_graph)
            await self._graphs.put_job_graph(StoredJob(job_graph, job.start_time))
        except BlobNotFoundError as error:  # the client can repair this
            await self._forget_refused(job, error)
            raise
        except FlinkRayError as error:
            await self._leave_to_successor(error)
            refusal = JobSubmissionError(job_id, f"its graph could not be stored: {error}")
            await self._refuse(job, refusal)
            raise refusal from error
        job.accepted.set_result(None)
        self._cancelling.await_client(job)
        log.info("%s accepted", job.text)
        self.create_task(self._job_masters.start(job))

    async def _leave_to_successor(self, error: FlinkRayError) -> None:
        """Return if this Dispatcher still leads, after a write to the store has failed with
        *error*. If another Dispatcher leads, the client must ask that one whether the write has
        succeeded.

        Raises:
            RecipientUnreachableError: this Dispatcher leads no more.
        """
        if not await self._leadership.is_certain():
            raise RecipientUnreachableError(f"{self.address} leads no more ({error})") from error

    async def ensure_spark_session(self, job_graph: JobGraph) -> JobID:
        return await self._ensure(job_graph, session_held_by)

    async def ensure_model(self, user: JobID, job_graph: JobGraph) -> JobID:
        self._models.check_user(user)
        job_id = await self._ensure(job_graph, model_held_by)
        try:
            self._models.used_by(job_id, user)
        except JobNotFoundError:  # the job that asks has ended meanwhile
            self._models.end_unused([job_id])
            raise
        return job_id

    async def find_replicas(self, user: JobID, model: JobID) -> tuple[KvStatePlace, ...]:
        self._models.used_by(model, user)
        try:
            return (await self._queries.kv_state_location(model, REPLICAS)).places
        except UnknownKvStateLocationError:  # none runs at present
            return ()

    async def _ensure(
        self, job_graph: JobGraph, held_by: Callable[[JobGraph], str | None]
    ) -> JobID:
        """Return the id of the job that holds what *job_graph* would hold, or else submit it."""
        name = held_by(job_graph)
        for job in tuple(self._jobs.values()):
            if not job.is_ending and name is not None and held_by(job.graph) == name:
                await asyncio.shield(job.accepted)  # raises if the job is refused
                return job.job_id
        await self.submit_job(job_graph)  # makes the job known at once
        return job_graph.job_id

    async def _refuse(self, job: ManagedJob, refusal: JobSubmissionError) -> None:
        """Remove the graph of a refused job from the store. The graph may be there even if storing
        it has failed, and then the next Dispatcher would run the job.

        Raises:
            JobSubmissionError: the graph is not removed yet, because the store fails. Removing it
                continues in the background.
        """

        async def withdraw() -> None:
            await retry_until_done(
                f"{job.text} is refused: cannot remove its graph yet",
                lambda: self._graphs.remove_job_graph(job.job_id),
            )
            await self._forget_refused(job, refusal)

        withdrawing = self.create_task(withdraw(), f"withdraw job {job.job_id}")
        await asyncio.wait([withdrawing], timeout=_REFUSAL_PATIENCE)
        if not withdrawing.done():
            raise JobSubmissionError(
                job.job_id,
                f"{refusal.text}; whether it is stored is not known as long as the storage fails: "
                "submit it again under this id, and you will be told",
            )

    async def _forget_refused(self, job: ManagedJob, refusal: FlinkRayError) -> None:
        await self._blobs.release(job.job_id)
        del self._jobs[job.job_id]
        for waiting in (job.accepted, job.ended, job.told):  # callers that wait for the job
            waiting.set_exception(refusal)
            waiting.exception()

    async def list_jobs(self) -> tuple[JobOverview, ...]:
        return await self._queries.overviews()

    async def list_models(self) -> tuple[ModelInfo, ...]:
        return self._models.infos(await self._queries.overviews())

    async def request_job_status(self, job_id: JobID) -> JobStatus:
        return await self._queries.status(job_id)

    async def request_job_progress(self, job_id: JobID) -> JobProgress:
        return await self._queries.progress(job_id)

    async def request_job_exceptions(self, job_id: JobID) -> tuple[ExceptionEntry, ...]:
        return await self._queries.exceptions(job_id)

    async def request_job_details(self, job_id: JobID) -> JobDetails:
        return await self._queries.details(job_id)

    async def request_job_settings(self, job_id: JobID) -> JobSettings:
        return self._queries.settings(job_id)

    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        return await self._queries.kv_state_location(job_id, name)

    async def request_source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        return await self._queries.source_coordinator(job_id)

    async def request_job_result(self, job_id: JobID) -> JobResult:
        if (ended := self._ended.get(job_id)) is not None:
            return ended.result
        return (await asyncio.shield(self._queries.managed(job_id).told)).result

    async def cancel_job(self, job_id: JobID) -> None:
        if (ended := self._ended.get(job_id)) is not None:
            outcome: ArchivedJob | None = ended
        else:
            outcome = self._queries.managed(job_id).outcome
        if outcome is not None:
            if outcome.result.status is JobStatus.CANCELED:
                return
            status = outcome.result.status.name
            raise JobStateError(job_id, f"it is {status}: it has ended without being cancelled")
        try:
            await self._cancelling.cancel(self._queries.managed(job_id))
        except StoreError as error:
            await self._leave_to_successor(error)
            raise

    async def heartbeat_from_client(self, job_ids: tuple[JobID, ...]) -> None:
        self._cancelling.heard_of_client(job_ids)

    async def resize_job(
        self,
        job_id: JobID,
        bounds: tuple[ParallelismBounds, ...],
        others: ParallelismRange | None = None,
    ) -> None:
        if self._ended.get(job_id) is not None:
            raise JobStateError(job_id, "it has ended")
        job = self._queries.managed(job_id)
        await asyncio.shield(job.accepted)
        await self._resizing.resize(job, bounds_for(job.graph, bounds, others))

    async def take_snapshot(self, job_id: JobID, request: SnapshotRequest) -> SnapshotTaken:
        if (ended := self._ended.get(job_id)) is not None:
            return taken_at_the_end(ended.result, request)
        return await self._snapshots.take(self._queries.managed(job_id), request)

    async def dispose_savepoint(self, path: str) -> None:
        await self._snapshots.dispose(path)

    async def request_savepoint_directories(self) -> tuple[str, ...]:
        of_cluster = self._services.configuration
        return (self._services.arguments.storage_dir, *self._snapshots.directories(of_cluster))

    async def request_cluster_numbers(self) -> ClusterNumbers:
        return await (await self._services.connect_to_resource_manager()).request_cluster_numbers()

    async def request_cluster_overview(self) -> ClusterOverview:
        manager = await self._services.connect_to_resource_manager()
        overview = await manager.request_resource_overview()
        return ClusterOverview(
            version=VERSION,
            task_executors=overview.task_executors,
            slots_total=overview.slots_total,
            slots_available=overview.slots_available,
            jobs=await self.list_jobs(),
            cluster_total=overview.cluster_total,
            cluster_available=overview.cluster_available,
            dashboard_url=overview.dashboard_url,
            masters=(
                await self._master("Dispatcher", self.address),
                await self._master("ResourceManager", manager.address),
            ),
        )

    async def _master(self, component: str, address: str) -> MasterInfo:
        leader, _ = split_address(address)
        processes = await self.rpc_service.process_names(component)
        standbys = tuple(name for name in processes if name != leader)
        return MasterInfo(component, leader, standbys)

    async def shut_down_cluster(self) -> None:
        self._shutting_down = True
        grace = self._services.configuration.get(SHUTDOWN_GRACE)
        running = list(self._jobs.values())
        for job in running:
            if job.outcome is None:
                try:
                    await self.cancel_job(job.job_id)
                except FlinkRayError as error:
                    log.warning("%s cannot be cancelled: %s", job.text, error)
        if running:
            ends = asyncio.wait([job.ended for job in running])
            with suppress(asyncio.TimeoutError):
                await self.rpc_service.deadlines.within(grace, ends)
        for job in tuple(self._jobs.values()):
            log.error("%s did not end within %g s; it is killed", job.text, grace)
            await self._job_masters.kill(job.job_id)
        await self.rpc_service.end_prestarted()
        manager = await self._services.connect_to_resource_manager()
        await manager.shut_down(self.fencing_token)
        self._gives_up_jobs = True
        # successors of the killed JobMasters, which were told to cancel
        for job_id in tuple(self._jobs):
            await self._job_masters.kill(job_id)
        self.close()

    # --- JobMasters -------------------------------------------------------------------------------

    async def register_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, job_master_address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        return await self._job_masters.register(job_id, job_master_id, job_master_address)

    async def heartbeat_from_job_master(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        overview_number: int,
        has_deployed: bool = False,
    ) -> None:
        self._job_masters.heartbeat(job_id, job_master_id)
        await self.job_overview_changed(job_id, job_master_id, overview_number)
        job = self._jobs.get(job_id)
        if has_deployed and job is not None and job.job_master_id == job_master_id:
            self._note_that_it_has_run(job)

    def _note_that_it_has_run(self, job: ManagedJob) -> None:
        """Begin to store that tasks of the job were deployed, unless this is stored already.
        If the job's JobMaster and SlotPool die, the next JobMaster then counts a restart. The
        information comes with heartbeats: a job that ends before the next one costs no write.
        """
        if job.has_run:
            return
        job.has_run = True

        async def store() -> None:
            async with job.storing:
                if job.outcome is None:
                    await self._graphs.put_job_graph(job.stored())

        storing = retry_until_done(f"{job.text}: that it has run is not stored yet", store)
        self.create_task(storing, f"store that job {job.job_id} has run")

    async def job_overview_changed(
        self, job_id: JobID, job_master_id: JobMasterId, overview_number: int
    ) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.job_master_id == job_master_id and job.remembered is not None:
            job.remembered.heard(overview_number, self.clock.monotonic())

    async def _job_master_terminated(
        self, job: ManagedJob, job_master_id: JobMasterId | None, reason: str
    ) -> None:
        if job.job_master_id != job_master_id:
            return  # a newer JobMaster leads
        self._job_masters.forget(job)
        if job.ending is not None:
            await asyncio.shield(job.ending)
        if job.outcome is not None:
            await self._clean_up(job)
            return
        if self._gives_up_jobs:
            return
        if job_master_id is None:
            log.info("%s: it has no JobMaster: %s", job.text, reason)
        else:
            log.warning("%s: its JobMaster died: %s", job.text, reason)
            now = self.clock.time()
            end = job.deaths.one_more(reason, now, self.clock.monotonic())
            if end is not None:
                await self._fail(job, end)
                return
        await self._job_masters.start(job)

    async def _job_master_unstartable(
        self, job: ManagedJob, job_master_id: JobMasterId, reason: str
    ) -> None:
        if job.job_master_id != job_master_id or job.ending is not None:
            return
        self._job_masters.forget(job)
        log.error("%s: its JobMaster cannot be started: %s", job.text, reason)
        await self._fail(job, f"its JobMaster cannot be started: {reason}")

    async def _fail(self, job: ManagedJob, why: str) -> None:
        error = JobExecutionError(job.job_id, why)
        await self._job_ended(job, job.failed(error, self.clock.time()))
        await self._clean_up(job)

    async def job_reached_terminal_state(
        self, job_id: JobID, job_master_id: JobMasterId, result: JobResult, details: JobDetails
    ) -> None:
        job = self._queries.managed(job_id)
        if job.job_master_id is None and job.outcome is None:
            await self._job_masters.refuse_past_ones(job, job_master_id)
        if job.outcome is not None:
            return  # reported before, in a call whose answer was lost
        # None: the JobMaster has not registered here yet
        if job.job_master_id not in (None, job_master_id):
            raise JobStateError(job_id, f"it is led by {job.job_master_id}, not {job_master_id}")
        outcome = job.archived(job.with_cancel_cause(result), job.with_failovers(details))
        await self._job_ended(job, outcome)

    async def _job_ended(self, job: ManagedJob, outcome: ArchivedJob) -> None:
        """Wait until it is stored how the job ended. Only the first outcome of a job is stored."""
        if job.ending is None:
            job.ending = self.create_task(self._store(job, outcome), f"store {job.job_id}")
        await asyncio.shield(job.ending)

    async def _store(self, job: ManagedJob, outcome: ArchivedJob) -> None:
        await retry_until_done(
            f"{job.text}: cannot store how it ended yet",
            lambda: self._results.create_dirty_result(outcome),
        )
        job.outcome = outcome
        self._cancelling.has_ended(job)
        self._models.has_ended(job.job_id)
        self._tell_end_later(job, outcome)
        log.info("%s ended: %s", job.text, outcome.result.status.name)

    def _tell_end_later(self, job: ManagedJob, outcome: ArchivedJob) -> None:
        """Answer clients that wait for the result after _CLEAN_UP_PATIENCE seconds at the latest,
        even if the clean-up of the job is not done by then."""
        self.schedule_run_async(_CLEAN_UP_PATIENCE, lambda: self._tell_end(job, outcome))

    def _tell_end(self, job: ManagedJob, outcome: ArchivedJob) -> None:
        if not job.told.done():
            job.told.set_result(outcome)

    async def _clean_up(self, job: ManagedJob) -> None:
        assert job.outcome is not None
        self._tell_end_later(job, job.outcome)  # an earlier Dispatcher may have stored the outcome
        await self._cleanup.clean_up(job)
        self._ended.add(job.outcome)
        del self._jobs[job.job_id]
        job.ended.set_result(job.outcome)
        self._tell_end(job, job.outcome)
