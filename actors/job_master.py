"""The JobMaster: runs one job.

A thin shell: everything that happens is told to the JobScheduler, whose answers are carried out.
One JobMaster object is one leader session of its job; a job whose JobMaster dies gets a new one
from the Dispatcher and begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace

from flinkray.actors.cluster_services import ClusterServices
from flinkray.actors.coordinators import SPARK_DRIVER_FACTORY, Coordinators, stage_descriptor
from flinkray.actors.format_runner import FormatRunner
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.job_master_leaders import JobMasterLeaders
from flinkray.actors.messages import (
    JobMasterArguments,
    SlotPoolArguments,
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.settings import default_restart_strategy, heartbeat_settings
from flinkray.actors.slot_pool_connection import SlotPoolConnection
from flinkray.actors.task_deployer import TaskDeployer
from flinkray.actors.task_executor_connections import TaskExecutorConnections
from flinkray.core import options
from flinkray.core.errors import (
    FlinkRayError,
    JobNotFoundError,
    JobStateError,
    RecipientUnreachableError,
    RpcError,
)
from flinkray.core.ids import (
    AllocationID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
    random_bytes,
)
from flinkray.rpc import (
    FencedRpcEndpoint,
    RegistrationFailure,
    RegistrationRejection,
    RpcService,
)
from flinkray.scheduler import job_scheduler_actions as act
from flinkray.scheduler.elastic_job_scheduler import ElasticJobScheduler, new_job_scheduler
from flinkray.scheduler.held_slots import HeldSlots
from flinkray.scheduler.job_graph import SchedulerMode
from flinkray.scheduler.job_info import JobDetails, JobResult
from flinkray.scheduler.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
    TaskExecutorWithoutSlots,
    in_messages,
)
from flinkray.scheduler.slots import (
    AllocatedSlot,
    ResourceRequirements,
    ResourceShortage,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.scheduler.tasks import ResultPartitionID, TaskExecutionState
from flinkray.spark.gateway import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
)

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.5
"""Seconds between two attempts to tell the Dispatcher of the job's end."""

_WATCHES_FIRE = 0.1
"""Seconds within which everybody who watches a process hears of its death."""


async def create_job_master(rpc_service: RpcService, arguments: JobMasterArguments) -> JobMaster:
    """Factory of the JobMaster's process."""
    return JobMaster(rpc_service, ClusterServices.create(rpc_service, arguments.cluster), arguments)


class JobMaster(FencedRpcEndpoint[JobMasterId], JobMasterGateway):
    """See the module's docstring."""

    def __init__(
        self,
        rpc_service: RpcService,
        services: ClusterServices,
        arguments: JobMasterArguments,
        spark_driver_factory: str = SPARK_DRIVER_FACTORY,
    ) -> None:
        super().__init__(rpc_service, "jobmaster", arguments.job_master_id)
        configuration = services.configuration
        self._services = services
        self._graph = arguments.job_graph
        self._job_id = arguments.job_graph.job_id
        self._resource_id = ResourceID(rpc_service.process_name)
        self._scheduler = new_job_scheduler(
            arguments.job_graph,
            self.address,
            default_restart_strategy=default_restart_strategy(configuration),
            epoch_offset=self.clock.time() - self.clock.monotonic(),
            now=self.clock.monotonic(),
            slot_request_timeout=configuration.get(options.SLOT_REQUEST_TIMEOUT),
            random=lambda: int.from_bytes(random_bytes(6), "big") / 2**48,
        )
        self._pool = SlotPoolConnection(
            self,
            SlotPoolArguments(
                arguments.cluster, self._job_id, arguments.job_master_id, self.address
            ),
            heartbeat_settings(configuration),
            resource_manager=lambda: self._leaders.resource_manager,
            on_lost=self._slot_pool_lost,
        )
        self._held_slots = HeldSlots()
        self._offers_in_flight: Counter[ResourceID] = Counter()
        self._is_restarting = False
        """As the SlotPool was told last."""
        self._requirements: ResourceRequirements | None = None
        """As declared last: to be declared again to a new SlotPool."""
        self._task_executors = TaskExecutorConnections(
            self,
            self._job_id,
            heartbeat_settings(configuration),
            allocations=self._held_slots.on,
            on_lost=self._task_executor_lost,
        )
        self._deployer = TaskDeployer(
            self,
            self._task_executors,
            self._scheduler,
            apply=self._apply,
            slot_lost=self._slot_lost,
            blob_server=lambda: self._leaders.blob_server,
        )
        self._formats = FormatRunner(
            self,
            self._graph,
            on_initialized=lambda vertex_id, splits: self._apply(
                self._scheduler.master_initialized(vertex_id, splits, self._now)
            ),
            on_finalized=lambda vertex_id, generation: self._apply(
                self._scheduler.master_finalized(vertex_id, generation, self._now)
            ),
            on_failed=lambda vertex_id, cause, generation: self._apply(
                self._scheduler.master_failed(vertex_id, cause, self._now, generation)
            ),
        )
        self._coordinators = Coordinators(
            self,
            on_started=lambda key: self._apply(
                self._scheduler.coordinator_started(*key, self._now)
            ),
            on_lost=lambda key, cause: self._apply(
                self._scheduler.coordinator_lost(*key, cause, self._now)
            ),
            on_stopped=lambda key: self._apply(
                self._scheduler.coordinator_stopped(*key, self._now)
            ),
            heartbeat=heartbeat_settings(configuration),
            factory=spark_driver_factory,
        )
        self._leaders = JobMasterLeaders(
            self,
            self._job_id,
            services,
            on_resource_manager=self._pool.connect_to,
            on_resource_manager_lost=self._resource_manager_lost,
            on_cancel_requested=self.cancel,
            on_rejection=self._rejected,
        )

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # --- life cycle -------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self._task_executors.start()
        await self._leaders.start()
        self.create_task(self._start_scheduling(), name="start scheduling")

    async def on_stop(self) -> None:
        self._task_executors.stop()
        manager = await self._leaders.stop()
        await self._coordinators.kill_all()
        await self._leaders.say_goodbye(manager)
        await self._pool.close("the JobMaster stops")
        await self._services.high_availability.close()

    async def _start_scheduling(self) -> None:
        await self._pool.start()
        self._apply(self._scheduler.start(self._now))

    async def _rejected(self, rejection: RegistrationRejection) -> None:
        log.warning("job %s: this JobMaster is not wanted: %s", self._job_id, rejection.reason)
        self.close()

    # --- carrying out decisions -------------------------------------------------------------------

    def _apply(self, actions: list[act.JobSchedulerAction]) -> None:
        """Begin all actions, in their order; what their calls answer comes back as events."""
        for action in actions:
            match action:
                case act.DeployTasks():
                    self._deployer.deploy_all(action)
                case act.CancelTasks():
                    self._deployer.cancel_all(action)
                case act.ReleasePartitions():
                    self._deployer.release(action)
                    self._let_go(action.location.resource_id)
                case act.DeployTask():
                    self._deployer.deploy(action)
                case act.CancelTask():
                    self._deployer.cancel(action)
                case act.StartCoordinator() | act.StopCoordinator():
                    self._carry_out_of_coordinator(action)
                case act.ScheduleRestart() | act.ScheduleSlotRequestTimeout():
                    self._start_timer(action)
                case act.ScheduleScalingTimer():
                    self._start_timer(action)
                case act.InitializeOnMaster() | act.FinalizeOnMaster():
                    self._formats.carry_out(action)
                case act.JobStatusChanged(status):
                    self._tell_pool_whether_restarting(status)
                case act.JobEnded(result, details):
                    self.create_task(self._end(result, details), name="report the job's end")
                case _:
                    self._carry_out_of_pool(action)

    def _carry_out_of_pool(self, action: act.JobSchedulerAction) -> None:
        match action:
            case act.DeclareRequirements(requirements):
                self._requirements = requirements
                self._declare_requirements()
            case act.ReleaseSlots(allocations, reason):
                self._pool.tell(lambda pool: pool.release_slots(allocations, reason))
            case SlotRequests():
                for message in in_messages(action):
                    self._request_slots(message)
            case CancelSlotRequests():
                self._pool.tell(lambda pool: pool.cancel_slot_requests(action))
            case ReturnSlots():
                self._pool.tell(lambda pool: pool.return_slots(action))

    def _carry_out_of_coordinator(self, action: act.StartCoordinator | act.StopCoordinator) -> None:
        key = (action.vertex_id, action.attempt_number)
        if isinstance(action, act.StopCoordinator):
            self._coordinators.stop(key)
            return
        descriptor = stage_descriptor(
            self._graph, action, self._services, self.address, self.fencing_token
        )
        self._coordinators.start(key, replace(descriptor, blob_server=self._leaders.blob_server))

    def _start_timer(
        self,
        action: act.ScheduleRestart | act.ScheduleSlotRequestTimeout | act.ScheduleScalingTimer,
    ) -> None:
        scheduler, generation = self._scheduler, action.generation
        match action:
            case act.ScheduleRestart():
                event = scheduler.restart_delay_over
            case act.ScheduleSlotRequestTimeout():
                event = scheduler.slot_request_timed_out
            case act.ScheduleScalingTimer():
                assert isinstance(scheduler, ElasticJobScheduler)
                event = scheduler.scaling_timer
        self.schedule_run_async(action.delay, lambda: self._apply(event(generation, self._now)))

    async def _end(self, result: JobResult, details: JobDetails) -> None:
        """Tell the Dispatcher, whichever it is by then, until it has stored the result."""
        while result.status.is_globally_terminal:
            try:
                dispatcher = await self._services.connect_to_dispatcher()
                await dispatcher.job_reached_terminal_state(
                    self._job_id, self.fencing_token, result, details
                )
                break
            except (JobNotFoundError, JobStateError) as error:
                log.warning("job %s: its end is not wanted any more: %s", self._job_id, error)
                break
            except FlinkRayError as error:
                log.warning("job %s: cannot report its end yet: %s", self._job_id, error)
            await asyncio.sleep(_REPORT_RETRY_DELAY)
        self.close()

    # --- the SlotPool -----------------------------------------------------------------------------

    def _request_slots(self, wanted: SlotRequests) -> None:
        self._pool.tell(lambda pool: pool.request_slots(wanted))

    def _declare_requirements(self) -> None:
        requirements = self._requirements
        if requirements is not None:
            self._pool.tell(lambda pool: pool.set_resource_requirements(requirements))

    def _tell_pool_whether_restarting(self, status: JobStatus) -> None:
        is_restarting = status is JobStatus.RESTARTING
        if is_restarting != self._is_restarting:
            self._is_restarting = is_restarting
            self._pool.tell(lambda pool: pool.set_job_restarting(is_restarting))

    def _slot_pool_lost(self, reason: str) -> None:
        """A new pool knows of no slot: those that TaskExecutors hold are given back first.

        The scheduler hears of it first, so that the tasks' ends do not come as failures of their
        own.
        """
        if not self.is_running or self._scheduler.status.is_terminal:
            return
        self._held_slots.clear()
        self._is_restarting = False
        self._declare_requirements()
        self._apply(self._scheduler.slot_pool_lost(reason, self._now))
        self._task_executors.remove_all(f"the SlotPool died: {reason}")
        if self._scheduler.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING):
            self.create_task(self._pool.start(), name="start another SlotPool")

    async def slots_changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[AllocatedSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Last words of a pool that died, and slots of TaskExecutors that were lost since, do not
        count."""
        if not self._pool.is_next(pool_number, news_number):
            return
        for slot in gained:
            if self._task_executors.is_connected(slot.location.resource_id):
                self._held_slots.add(slot)
        self._held_slots.remove(lost)
        if self._needs_to_know_all_slots:
            self._apply(self._scheduler.slots_changed(self._held_slots.all(), self._now))
        self._apply(self._scheduler.slot_events(events, self._now))
        for event in events:
            if isinstance(event, TaskExecutorWithoutSlots):
                self._let_go(event.resource_id)

    @property
    def _needs_to_know_all_slots(self) -> bool:
        """Not only those that it has requested."""
        is_elastic = self._graph.scheduler_mode is SchedulerMode.ADAPTIVE
        return self._graph.needs_dedicated_workers or is_elastic

    def _let_go(self, resource_id: ResourceID) -> None:
        """The job has no slot there any more, and no result that it still needs, and no slot is
        being offered from there (JM-15)."""
        if (
            self._task_executors.is_connected(resource_id)
            and not self._held_slots.on(resource_id)
            and not self._offers_in_flight[resource_id]
            and not self._scheduler.holds_partitions_on(resource_id)
        ):
            self._task_executors.remove(resource_id, "the job has no slot there any more")
            reason = "it was let go with its last slot"
            self._pool.tell(lambda pool: pool.release_task_executor(resource_id, reason))

    # --- the ResourceManager and the Dispatcher ---------------------------------------------------

    def _resource_manager_lost(self) -> None:
        self._pool.disconnect()
        # the next one knows nothing of what this one said, and would never take it back
        self._apply(self._scheduler.resources_short((), self._now))

    async def heartbeat_from_resource_manager(self, resource_id: ResourceID) -> None:
        self._leaders.heartbeat_from_resource_manager(resource_id)

    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        self._leaders.disconnected_by(resource_manager_id, reason)

    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        self._apply(self._scheduler.resources_short(shortages, self._now))
        if not self._graph.needs_dedicated_workers:
            self._pool.tell(lambda pool: pool.notify_not_enough_resources(shortages))

    async def heartbeat_from_dispatcher(self, resource_id: ResourceID) -> None:
        self._leaders.heartbeat_from_dispatcher(resource_id)

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register_task_executor(
        self, job_id: JobID, location: WorkerLocation
    ) -> TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        if job_id != self._job_id:
            return RegistrationRejection(f"this JobMaster runs job {self._job_id}, not {job_id}")
        # who registers, again or not, may have forgotten what it was sent
        self._scheduler.task_executor_registered(location.resource_id)
        try:
            if await self._task_executors.add(location):
                self._pool.tell(lambda pool: pool.register_task_executor(location))
        except RpcError as error:
            return RegistrationFailure(f"no TaskExecutor at {location.address}: {error}")
        return TaskExecutorToJobMasterRegistrationSuccess(self._resource_id)

    def _task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        """Its slots, and the tasks in them, are gone."""
        cause = f"{resource_id} was lost: {reason}"
        self._deployer.task_executor_lost(resource_id)
        self._held_slots.remove_all_on(resource_id)
        self._apply(self._scheduler.task_executor_lost(resource_id, cause, self._now))
        self._pool.tell(lambda pool: pool.release_task_executor(resource_id, cause))

    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        self._task_executors.get(resource_id)
        if self._pool.gateway is None:
            raise RecipientUnreachableError(f"job {self._job_id} has no SlotPool at present")
        self._offers_in_flight[resource_id] += 1
        try:
            return await self._pool.gateway.offer_slots(resource_id, offers)
        finally:
            self._offers_in_flight[resource_id] -= 1

    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        """Of a TaskExecutor that died the ResourceManager may tell slot by slot, before the
        TaskExecutor's watch here has fired: to lose all of them is to be one failure, not many."""
        if allocation_id in self._held_slots.on(resource_id):
            self.schedule_run_async(
                _WATCHES_FIRE, lambda: self._fail_held_slot(resource_id, allocation_id, reason)
            )
        else:
            self._slot_lost(allocation_id, reason)

    def _fail_held_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        if allocation_id in self._held_slots.on(resource_id):
            self._slot_lost(allocation_id, reason)

    def _slot_lost(self, allocation_id: AllocationID, reason: str) -> None:
        self._apply(self._scheduler.slot_failed(allocation_id, reason, self._now))
        self._pool.tell(lambda pool: pool.fail_allocation(allocation_id, reason))

    async def update_task_execution_states(self, states: tuple[TaskExecutionState, ...]) -> None:
        self._deployer.states_changed(states)
        self._apply(self._scheduler.task_states_changed(states, self._now))

    async def request_partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        return self._scheduler.partition_state(partition)

    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        self._task_executors.lose(resource_id, reason)

    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None:
        self._task_executors.heartbeat(resource_id, payload)
        if self._task_executors.is_connected(resource_id):
            self._deployer.running(resource_id, payload.attempts)

    # --- Spark drivers ----------------------------------------------------------------------------

    async def spark_executors_changed(
        self,
        vertex_id: JobVertexID,
        attempt_number: int,
        registered: tuple[SparkExecutorInfo, ...],
    ) -> None:
        self._apply(
            self._scheduler.executors_changed(vertex_id, attempt_number, registered, self._now)
        )

    async def spark_progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress
    ) -> None:
        self._apply(self._scheduler.stage_progress(vertex_id, attempt_number, progress, self._now))

    async def spark_stage_finished(
        self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult
    ) -> None:
        self._apply(self._scheduler.stage_finished(vertex_id, attempt_number, result, self._now))

    async def spark_stage_failed(
        self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure
    ) -> None:
        self._apply(self._scheduler.stage_failed(vertex_id, attempt_number, failure, self._now))

    # --- for clients, through the Dispatcher ------------------------------------------------------

    async def request_job_status(self) -> JobStatus:
        return self._scheduler.status

    async def request_job_details(self) -> JobDetails:
        return self._scheduler.details()

    async def cancel(self) -> None:
        self._apply(self._scheduler.cancel(self._now))
