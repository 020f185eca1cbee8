"""The JobMaster: runs one job.

The endpoint reports every event to the JobScheduler and carries out the actions that it returns.
One JobMaster object is one leader session. If a JobMaster dies, the Dispatcher starts another,
which takes over the running tasks (``docs/design/0051-taking-over.md``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from flinkray.actors.coordinators.processes import CoordinatorProcesses
from flinkray.actors.coordinators.runner import CoordinatorListener, CoordinatorRunner
from flinkray.actors.coordinators.spark_driver_process import SPARK_DRIVER_FACTORY
from flinkray.actors.coordinators.stream_coordinator_process import (
    stream_sources_of,
)
from flinkray.actors.gateways import JobMasterGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import (
    JobMasterArguments,
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
    job_master_resource_id,
)
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.actors.job_master.leaders import JobMasterLeaders
from flinkray.actors.job_master.reports_to_dispatcher import report_end
from flinkray.actors.job_master.running_io_metrics import RunningIOMetrics
from flinkray.actors.job_master.slots import JobMasterSlots
from flinkray.actors.job_master.snapshot_requests import SnapshotRequests
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.actors.job_master.stored_checkpoints import CheckpointsLostError
from flinkray.actors.job_master.taking_over import Reconciliation, TakingOver
from flinkray.actors.job_master.task_deployer import TaskDeployer
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.checkpoint_storage import why_not_started_from
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.exported_metrics import (
    JOB,
    alarms_of_job,
    job_tags,
    samples_of,
    state_of_job,
    values_of_job,
)
from flinkray.actors.shared.leadership import Leadership, LeadershipLostError
from flinkray.actors.shared.settings import (
    default_restart_strategy,
    heartbeat_settings,
    job_master_restart_strategy,
    scaling_settings,
    with_checkpoint_options,
)
from flinkray.actors.shared.traces import Traces
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError, JobStateError, RpcError
from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    ExecutionGraphID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
    random_bytes,
)
from flinkray.core.job_options import (
    RESTART_ATTEMPTS_WITH_SAME_ERROR,
    RESTART_PATIENCE_WITH_FILES,
    STATE_RECOVERY_PATH,
)
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    KvStateLocation,
    KvStateRegistration,
)
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    MetricSample,
    RegistrationFailure,
    RegistrationRejection,
    RpcService,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import SavepointGiven
from flinkray.scheduler.elastic.elastic_job_scheduler import new_job_scheduler
from flinkray.scheduler.execution.repeated_errors import RepetitionLimits
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import ParallelismBounds
from flinkray.scheduler.job import job_scheduler_actions as act
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
    CoordinatorKind,
)
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    JobResult,
    NumberedOverview,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import (
    ResourceShortage,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import SourceCoordinatorPlace, TaskExecutorReport
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
)

log = logging.getLogger(__name__)

REPLICA_METRICS_INTERVAL = 1.0
"""Seconds between two looks at the load of a model's replicas."""
_SUSPENSION_TIMEOUT = 10.0
"""Seconds that a stopping JobMaster waits for the end of the tasks that it has cancelled."""


async def create_job_master(rpc_service: RpcService, arguments: JobMasterArguments) -> JobMaster:
    """Create the endpoint of a JobMaster's process, once this process leads the job."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    return JobMaster(rpc_service, services, arguments, await win_job(services, arguments))


async def win_job(services: ClusterServices, arguments: JobMasterArguments) -> Leadership:
    """Wait until this process is elected to lead the job, under the session id in *arguments*."""
    election = services.high_availability.get_job_master_leader_election(
        arguments.job_graph.job_id, arguments.job_master_id.leader_session()
    )
    return await Leadership.win(election)


class JobMaster(FencedRpcEndpoint[JobMasterId], JobMasterGateway, CoordinatorListener):
    """Endpoint of the JobMaster.
    It connects the JobScheduler with the other components of this package.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        services: ClusterServices,
        arguments: JobMasterArguments,
        leadership: Leadership,
        spark_driver_factory: str = SPARK_DRIVER_FACTORY,
    ) -> None:
        super().__init__(rpc_service, "jobmaster", arguments.job_master_id)
        configuration = services.configuration
        self._services = services
        self._leadership = leadership
        self._graph = arguments.job_graph
        self._job_id = arguments.job_graph.job_id
        self._resource_id = job_master_resource_id(
            rpc_service.process_name, arguments.job_master_id
        )
        of_job = configuration.with_values(arguments.job_graph.configuration)
        self._scheduler = new_job_scheduler(
            with_checkpoint_options(arguments.job_graph, configuration),
            self.address,
            new_graph_id=ExecutionGraphID.generate,
            default_restart_strategy=default_restart_strategy(of_job),
            same_error=RepetitionLimits(
                of_job.get(RESTART_ATTEMPTS_WITH_SAME_ERROR),
                of_job.get(RESTART_PATIENCE_WITH_FILES),
            ),
            epoch_offset=self.clock.time() - self.clock.monotonic(),
            now=self.clock.monotonic(),
            scaling=scaling_settings(configuration),
            random=lambda: int.from_bytes(random_bytes(6), "big") / 2**48,
        )
        heartbeat = heartbeat_settings(configuration)
        ledger = SlotLedger()
        self._reconciliation = Reconciliation(self, self._job_id, ledger)
        self._task_executors = TaskExecutorConnections(
            self,
            self._job_id,
            heartbeat,
            allocations=self._reconciliation.allocations,
            on_lost=self._task_executor_lost,
        )
        self._slots = JobMasterSlots(
            self,
            arguments,
            self._scheduler,
            ledger,
            self._task_executors,
            heartbeat,
            handle=self._handle,
            is_certain=leadership.is_certain,
        )
        self._leaders = JobMasterLeaders(
            self, self._graph, services, self._scheduler, listener=self
        )
        self._processes = CoordinatorProcesses(
            self,
            self._graph,
            services,
            spark_driver_factory,
            noted=self._slots.notes.acknowledged,
            on_replaced=self._replaced,
        )
        self._coordinators = CoordinatorRunner(self, self._processes, self, heartbeat)
        self._sources = SourceCoordination(
            self,
            self._coordinators,
            (vertex.vertex_id for vertex in stream_sources_of(self._graph)),
            self._slots.notes,
            new_restart_strategy(job_master_restart_strategy(configuration)),
            self._replaced,
            has_hooks=self._graph.has_master_hook,
        )
        self._deployer = TaskDeployer(
            self,
            self._task_executors,
            self._scheduler,
            self._leaders,
            notes=self._slots.notes,
            sources=self._sources,
            handle=self._handle,
            slot_lost=self._slots.lost,
        )
        self._io_metrics = RunningIOMetrics(self, self._job_id, self._task_executors)
        self._checkpoints = CheckpointCarrier(
            self,
            services,
            self._graph,
            self._scheduler,
            self._task_executors,
            self._sources,
            handle=self._handle,
            on_replaced=self._replaced,
        )
        self._snapshots = SnapshotRequests(self, self._graph, self._checkpoints)
        self._taking_over = TakingOver(
            self,
            arguments,
            configuration,
            self._scheduler,
            self._reconciliation,
            self._task_executors,
            self._slots,
            self._deployer,
            self._checkpoints,
            self._coordinators,
            self._processes,
            self._sources,
            apply=self._apply,
        )
        self._has_predecessors = arguments.has_predecessors
        self._traces = Traces(configuration)

        self._tasks_ended: asyncio.Future[None] = rpc_service.loop.create_future()
        """Completed when the job has ended here, even if another JobMaster will run it."""
        self._has_begun = False
        """Whether this JobMaster knows from which state the job begins."""
        self._is_over = False
        """Whether the job has ended for good, and the Dispatcher knows it."""

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    @property
    def _has_ended(self) -> bool:
        """Whether the job has ended for good. The end may not be stored yet."""
        return self._scheduler.status.is_globally_terminal

    # --- life cycle -------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self.export_metrics(self._metrics)
        self._task_executors.start()
        # components at which it registers look up this address
        await self._leadership.confirm(self)
        await self._leaders.start()
        self.create_task(self._start_scheduling(), name="start scheduling")
        if self._scheduler.has_replicas:
            self.create_task(self._follow_load_of_replicas(), name="follow the load of replicas")

    async def on_stop(self) -> None:
        """Cancel the job's tasks, unless the job is over, and disconnect from all other processes.
        The slots of a job that is over are freed; otherwise they are left to its next JobMaster. A
        JobMaster that has lost its leadership or has failed cancels nothing: its successor takes
        over the running tasks."""
        if self._leadership.is_lost:
            await self._leaders.stop()
            self._task_executors.stop()
            await self._traces.flush()
            await self._services.high_availability.close()
            return
        self._handle(t.SuspendJob("its JobMaster stops"))
        manager = await self._leaders.stop()
        await self._coordinators.kill_all()
        await self._leaders.say_goodbye(manager)
        if self._is_over:
            await self._slots.pool.close("the job has ended")
        else:
            await self._slots.pool.leave()
            ends = [self._tasks_ended]
            if self._scheduler.takes_checkpoints:
                ends.append(self._checkpoints.left)
            await asyncio.wait(ends, timeout=_SUSPENSION_TIMEOUT)
        self._task_executors.stop()
        await self._coordinators.all_ended()
        await self._leadership.give_up()
        await self._traces.flush()
        await self._services.high_availability.close()

    def _metrics(self) -> Iterator[MetricSample]:
        scheduler, now = self._scheduler, self.clock.time()
        values = values_of_job(
            scheduler.running_since, scheduler.restarts, scheduler.checkpoints, now
        ) | alarms_of_job(scheduler.down_since, scheduler.checkpointed_at, now)
        yield from samples_of(JOB, values, job_tags(self._graph.name, self._job_id))
        if not scheduler.status.is_terminal:  # afterwards the Dispatcher reports the state
            yield from state_of_job(self._graph.name, self._job_id, scheduler.status)

    def on_fatal_error(self, error: BaseException) -> None:
        """Mark the leadership as lost, so that :meth:`on_stop` leaves the running tasks alone."""
        self._leadership.lose()
        super().on_fatal_error(error)

    def _replaced(self, reason: str) -> None:
        log.warning("%s: this JobMaster ends: %s", self._graph.text, reason)
        self._leadership.lose()
        self.close()

    async def _follow_load_of_replicas(self) -> None:
        """Ask replicas of models what they have done, so that their number follows the load."""
        while self._scheduler.has_replicas:
            await self.rpc_service.pause(REPLICA_METRICS_INTERVAL)
            if self._has_begun:
                metrics = await self._io_metrics.of(self._scheduler.places_of_streams())
                self._handle(t.ReplicasMeasured(metrics))

    async def _start_scheduling(self) -> None:
        if self._has_predecessors:
            self._has_begun = await self._taking_over.run(self._recovered)
            return
        self._reconciliation.is_over()
        await self._slots.start_pool()
        if await self._recovered() is not None:
            self._has_begun = True
            self._handle(t.StartJob())

    async def _recovered(self) -> tuple[CompletedCheckpoint, ...] | None:
        """Recover the job's checkpoints, or the savepoint from which the job starts.
        Returns the checkpoints of earlier JobMasters, oldest first. None if this JobMaster must not
        start the job, because the state cannot be read or another JobMaster has taken over.
        """
        if not self._scheduler.takes_checkpoints:
            return ()
        try:
            recovered = await self._checkpoints.recover()
        except CheckpointsLostError as error:
            failure = Failure(str(error), suppress_restarts=True)
            self._handle(t.GlobalFailure(failure))
            return None
        if recovered is None:
            return None
        self._scheduler.checkpoints_recovered(recovered)
        return recovered if recovered or await self._has_read_savepoint() else None

    async def _has_read_savepoint(self) -> bool:
        """Read the savepoint from which the job is to start, if there is one. Returns False if it
        cannot be read: the job fails then. Returns True if it was read or if there is none."""
        location = ReadableConfig(self._graph.configuration).get(STATE_RECOVERY_PATH)
        if location is None:
            return True
        try:
            savepoint = await self._checkpoints.read_savepoint(location)
        except CheckpointStorageError as error:
            text = why_not_started_from(location, error)
            failure = Failure(text, suppress_restarts=True)
            self._handle(t.GlobalFailure(failure))
            return False
        self._handle(SavepointGiven(savepoint))
        return True

    # --- carrying out decisions -------------------------------------------------------------------

    def _handle(self, event: JobEvent) -> None:
        self._apply(self._scheduler.handle(event, self._now))

    def _apply(self, actions: list[act.JobSchedulerAction]) -> None:
        """Begin to carry out the actions, in their order.
        Answers to their calls come back as events.
        """
        for action in actions:
            match action:
                case act.DeployTasks():
                    self._deployer.deploy_all(action)
                case act.CancelTasks():
                    self._deployer.cancel_all(action)
                case act.ReleasePartitions():
                    self._deployer.release(action)
                    self._slots.let_go(action.location.resource_id)
                case act.NoteJob(notes):
                    self._slots.notes.note(notes)
                case act.NoteFinished(tasks):
                    self._slots.notes.finished(tasks)
                case (
                    act.AdoptSlots()
                    | act.SetRequirements()
                    | SlotRequests()
                    | CancelSlotRequests()
                    | ReturnSlots()
                ):
                    self._slots.carry_out(action)
                case act.JobRestarts(number, cause, delay):
                    log.warning(
                        "job %s (%s) restarts in %.1f s (restart %d): %s",
                        self._job_id,
                        self._graph.name,
                        delay,
                        number,
                        cause,
                    )
                case act.StartCoordinator():
                    self._coordinators.start(action.coordinator, self._process_for(action))
                case act.StopCoordinator():
                    # The coordinator of a job that has ended is kept until the end is stored, so
                    # that the job could still be taken over. It ends with this JobMaster.
                    if not (self._has_ended and self._coordinators.outlives_us(action.coordinator)):
                        self._coordinators.stop(action)
                case act.CallGlobalFormats(call):
                    self._sources.call_global_formats(call, self._leaders, self._told)
                case StartTimer():
                    self._start_timer(action)
                case act.JobStatusChanged(status):
                    self._slots.status_changed(status)
                case act.JobEnded(result, details):
                    self._tasks_ended.set_result(None)
                    self.create_task(self._end(result, details), name="report the job's end")
                case _:
                    self._checkpoints.carry_out(action)
        self._traces.tell(self._scheduler.take_spans(), self._job_id, self._graph.name)
        self._leaders.overview.changed()

    def _when_decided(self, event: JobEvent) -> None:
        """Handle *event* now. During a takeover, handle it once this JobMaster has decided which
        tasks continue."""
        self._reconciliation.when_decided(lambda: self._handle(event))

    def _start_timer(self, action: StartTimer) -> None:
        schedule = self.schedule_deadline if action.is_deadline else self.schedule_run_async
        schedule(action.delay, lambda: self._handle(action.event))

    async def _end(self, result: JobResult, details: JobDetails) -> None:
        takes_checkpoints = self._scheduler.takes_checkpoints
        if takes_checkpoints:
            await self._checkpoints.settled
        if result.status.is_globally_terminal:
            result = self._checkpoints.with_kept(self._snapshots.with_savepoint(result))
            is_stored = await report_end(self._services, self.fencing_token, result, details)
            if takes_checkpoints and is_stored:
                await self._checkpoints.forget()
            self._is_over = True
        self.close()

    # --- the SlotPool -----------------------------------------------------------------------------

    async def slots_changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[HeldSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        self._slots.changed(pool_number, news_number, gained, lost, events)

    # --- the ResourceManager and the Dispatcher ---------------------------------------------------

    async def heartbeat_from_resource_manager(
        self, resource_id: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None:
        self._leaders.heartbeat_from_resource_manager(resource_id, resource_manager_id)

    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        self._leaders.disconnected_by(resource_manager_id, reason)

    async def notify_not_enough_resources(
        self, resource_manager_id: ResourceManagerId, shortages: tuple[ResourceShortage, ...]
    ) -> None:
        if self._leaders.is_led_by(resource_manager_id):
            self._reconciliation.when_decided(lambda: self._slots.resources_short(shortages))

    async def notify_task_executor_lost(
        self, resource_manager_id: ResourceManagerId, resource_id: ResourceID, reason: str
    ) -> None:
        if self._leaders.is_led_by(resource_manager_id):
            self._task_executors.lose(resource_id, reason)

    async def heartbeat_from_dispatcher(
        self, resource_id: ResourceID, dispatcher_id: DispatcherId
    ) -> None:
        self._leaders.heartbeat_from_dispatcher(resource_id, dispatcher_id)

    # called by JobMasterLeaders

    def resource_manager_connected(self, manager: ResourceManagerGateway) -> None:
        self._slots.pool.connect_to(manager)

    def resource_manager_lost(self) -> None:
        self._slots.pool.disconnect()  # at once: another may be connected before the decision
        self._reconciliation.when_decided(self._slots.resource_manager_lost)

    def bounds_changed(self, bounds: tuple[ParallelismBounds, ...]) -> None:
        self._when_decided(t.ResizeJob(bounds))

    def cancel_requested(self) -> None:
        self._when_decided(t.CancelJob())

    def registration_rejected(self, rejection: RegistrationRejection) -> None:
        log.warning("%s: this JobMaster is not wanted: %s", self._graph.text, rejection.reason)
        self.close()

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register_task_executor(
        self, job_id: JobID, report: TaskExecutorReport
    ) -> TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        if job_id != self._job_id:
            return RegistrationRejection(
                f"this JobMaster runs {self._graph.text}, not job {job_id}"
            )
        try:
            await self._slots.register(report)
        except RpcError as error:
            return RegistrationFailure(f"no TaskExecutor at {report.location.address}: {error}")
        self._taking_over.reported(report)
        if report.slots:
            resource_id = report.location.resource_id
            self._reconciliation.when_decided(lambda: self._slots.adopt_on(resource_id))
        return TaskExecutorToJobMasterRegistrationSuccess(self._resource_id)

    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        self._reconciliation.when_decided(lambda: self._slots.lost(allocation_id, reason))

    async def tasks_reported(self, reports: tuple[TaskReport, ...]) -> None:
        self._reconciliation.when_decided(lambda: self._reported(reports))

    def _reported(self, reports: tuple[TaskReport, ...]) -> None:
        states = tuple(r for r in reports if isinstance(r, TaskExecutionState))
        self._deployer.states_changed(states)
        self._handle(t.TasksReported(reports))

    async def request_partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        await self._reconciliation.decided()
        return self._scheduler.partition_state(partition)

    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        self._task_executors.lose(resource_id, reason)

    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None:
        self._task_executors.heartbeat(resource_id, payload)
        if self._task_executors.is_connected(resource_id) and self._reconciliation.is_decided:
            self._deployer.running(resource_id, payload.attempts)

    def _task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        self._slots.notes.copy.lost(resource_id)
        if not self._reconciliation.is_decided:
            self._reconciliation.lost(resource_id)
        else:
            self._deployer.task_executor_lost(resource_id)
            self._slots.task_executor_lost(resource_id, reason)

    # --- queryable state --------------------------------------------------------------------------

    async def notify_kv_states_registered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        if job_id != self._job_id:
            raise KvStateJobNotFoundError(job_id)
        await self._reconciliation.decided()
        refusals = [self._scheduler.kv_states.refusal(it) for it in registrations]
        self._handle(t.KvStatesRegistered(registrations))
        _raise_first(refusals)

    async def notify_kv_states_unregistered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        if job_id != self._job_id:
            raise KvStateJobNotFoundError(job_id)
        await self._reconciliation.decided()
        refusals = [self._scheduler.kv_states.refusal_to_unregister(it) for it in registrations]
        self._handle(t.KvStatesUnregistered(registrations))
        _raise_first(refusals)

    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        return self._scheduler.kv_states.location(job_id, name)

    # --- operator coordinators --------------------------------------------------------------------

    def _process_for(self, action: act.StartCoordinator) -> EndpointSpec:
        coordinator = action.coordinator
        match coordinator.kind:
            case CoordinatorKind.SOURCE_ENUMERATORS:
                beginning = self._sources.beginning(coordinator, self._scheduler.graph_id)
                blob_server = self._leaders.blob_server
                return self._processes.source_enumerators.spec(coordinator, beginning, blob_server)
            case CoordinatorKind.SPARK_DRIVER:
                return self._processes.spark_drivers.spec(action, self._leaders.blob_server)

    def coordinator_started(self, coordinator: CoordinatorID, address: str) -> None:
        if coordinator.kind is CoordinatorKind.SOURCE_ENUMERATORS:
            place = SourceCoordinatorPlace(coordinator.attempt_number, self._sources.owner, address)
            self._handle(t.SourceCoordinatorIsAt(place))
        self._sources.started(coordinator)
        self._handle(t.CoordinatorStarted(coordinator))

    def coordinator_lost(self, coordinator: CoordinatorID, cause: str) -> None:
        is_of_sources = coordinator.kind is CoordinatorKind.SOURCE_ENUMERATORS
        goes_on = is_of_sources and self._sources.may_go_on(self._now)
        self._sources.gone(coordinator, cause, goes_on=goes_on)
        self._handle(t.CoordinatorGone(coordinator, cause, goes_on=goes_on))

    def coordinator_stopped(self, coordinator: CoordinatorID) -> None:
        self._sources.gone(coordinator, "it was stopped")
        self._handle(t.CoordinatorGone(coordinator))

    async def coordinator_told(self, coordinator: CoordinatorID, event: CoordinatorEvent) -> None:
        self._told(coordinator, event)

    def _told(self, coordinator: CoordinatorID, event: CoordinatorEvent) -> None:
        self._when_decided(t.CoordinatorTold(coordinator, event))

    async def confirm_leadership(self) -> None:
        if not await self._leadership.is_certain():
            raise LeadershipLostError(f"{self.address} leads no more")

    async def keep_part(
        self, owner: JobMasterId, coordinator: CoordinatorID, part: KeptPart
    ) -> None:
        if not self._reconciliation.is_decided:
            raise CoordinatorReplacedError("it is not known yet what goes on")
        await self._sources.keep(owner, coordinator, part)

    # --- for clients, through the Dispatcher ------------------------------------------------------

    async def request_job_status(self) -> JobStatus:
        return self._scheduler.status

    async def request_job_overview(self) -> NumberedOverview:
        return self._leaders.overview.give()

    async def request_job_progress(self) -> JobProgress:
        return self._scheduler.progress()

    async def request_job_exceptions(self) -> tuple[ExceptionEntry, ...]:
        return self._scheduler.exceptions()

    async def request_job_details(self) -> JobDetails:
        running = await self._io_metrics.of(self._scheduler.places_of_streams())
        return self._scheduler.details(running)

    async def take_snapshot(
        self, dispatcher_id: DispatcherId, request: SnapshotRequest
    ) -> SnapshotTaken:
        self._leaders.refuse_other_dispatchers(dispatcher_id, "take a snapshot")
        return await self._snapshots.take(request)

    async def request_source_coordinator(self) -> JobMasterId | None:
        return self._sources.owner if self._reconciliation.is_decided else None

    async def request_savepoint_in_use(self) -> str | None:
        self._refuse_before_its_beginning()
        return self._scheduler.savepoint_in_use

    async def request_max_parallelism(self) -> tuple[tuple[JobVertexID, int], ...]:
        self._refuse_before_its_beginning()
        return tuple(self._scheduler.max_parallelism.items())

    def _refuse_before_its_beginning(self) -> None:
        if not self._has_begun:
            raise JobStateError(self._job_id, "what it begins with is not read yet")

    async def cancel(self, dispatcher_id: DispatcherId) -> None:
        self._leaders.refuse_other_dispatchers(dispatcher_id, "cancel")
        self.cancel_requested()

    async def resize(
        self, dispatcher_id: DispatcherId, bounds: tuple[ParallelismBounds, ...]
    ) -> None:
        self._leaders.refuse_other_dispatchers(dispatcher_id, "resize")
        self._leaders.bounds_told()
        self.bounds_changed(bounds)


def _raise_first(refusals: Iterable[FlinkRayError | ValueError | None]) -> None:
    for refusal in refusals:
        if refusal is not None:
            raise refusal
