"""The JobMaster: runs one job.

A thin shell: everything that happens is told to the JobScheduler, whose answers are carried out.
One JobMaster object is one leader session of its job; a job whose JobMaster dies gets a new one
from the Dispatcher and begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from flinkray.actors.cluster_services import ClusterServices
from flinkray.actors.coordinators import SPARK_DRIVER_FACTORY, Coordinators
from flinkray.actors.gateways import (
    DispatcherGateway,
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
)
from flinkray.actors.leader_connection import LeaderConnection
from flinkray.actors.messages import (
    JobMasterArguments,
    JobMasterRegistrationSuccess,
    JobMasterToDispatcherRegistrationSuccess,
    SlotPoolArguments,
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.actors.settings import heartbeat_settings, registration_settings
from flinkray.actors.task_executor_connections import TaskExecutorConnections
from flinkray.actors.task_runners import TaskError
from flinkray.actors.tell import tell
from flinkray.blob import blob_server_beside
from flinkray.core import options
from flinkray.core.errors import (
    FlinkRayError,
    JobNotFoundError,
    JobStateError,
    RecipientUnreachableError,
    RpcError,
    SlotAllocationError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResourceManagerId,
)
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    HeartbeatManager,
    RegistrationFailure,
    RegistrationRejection,
    RpcService,
)
from flinkray.scheduler import job_scheduler_actions as act
from flinkray.scheduler.held_slots import HeldSlots
from flinkray.scheduler.job_graph import FixedDelayRestart, NoRestart, RestartStrategy
from flinkray.scheduler.job_info import JobDetails, JobResult
from flinkray.scheduler.job_scheduler import JobScheduler
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
from flinkray.scheduler.states import JobStatus
from flinkray.scheduler.tasks import TaskExecutionState
from flinkray.spark.gateway import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
    SparkStageDescriptor,
)

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.5
"""Seconds between two attempts to tell the Dispatcher of the job's end."""

_SLOT_POOL_STARTS = 5
"""How many SlotPools in a row may die while they start before the JobMaster gives up."""


PoolCall = Callable[[SlotPoolGateway], Coroutine[Any, Any, None]]


def slot_pool_process(job_id: JobID) -> str:
    """Name of the process of a job's SlotPool."""
    return f"SlotPool-{job_id}"


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
        self._scheduler = JobScheduler(
            arguments.job_graph,
            self.address,
            default_restart_strategy=_default_restart_strategy(services),
            epoch_offset=self.clock.time() - self.clock.monotonic(),
            now=self.clock.monotonic(),
            slot_request_timeout=configuration.get(options.SLOT_REQUEST_TIMEOUT),
        )
        self._slot_pool: SlotPoolGateway | None = None
        self._for_next_pool: list[PoolCall] = []
        self._held_slots = HeldSlots()
        self._offers_in_flight: Counter[ResourceID] = Counter()
        self._requirements: ResourceRequirements | None = None
        """As declared last: to be declared again to a new SlotPool."""
        self._task_executors = TaskExecutorConnections(
            self,
            self._job_id,
            heartbeat_settings(configuration),
            allocations=self._held_slots.on,
            on_lost=self._task_executor_lost,
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
            factory=spark_driver_factory,
        )
        registration = registration_settings(configuration)
        self._resource_manager: LeaderConnection[
            ResourceManagerGateway, JobMasterRegistrationSuccess
        ] = LeaderConnection(
            self,
            target_name="ResourceManager",
            gateway=ResourceManagerGateway,
            token_type=ResourceManagerId,
            register=lambda manager: manager.register_job_master(
                self.fencing_token, self._resource_id, self.address, self._job_id
            ),
            on_connected=self._resource_manager_connected,
            on_lost=self._resource_manager_lost,
            on_rejection=self._rejected,
            settings=registration,
        )
        self._dispatcher: LeaderConnection[
            DispatcherGateway, JobMasterToDispatcherRegistrationSuccess
        ] = LeaderConnection(
            self,
            target_name="Dispatcher",
            gateway=DispatcherGateway,
            token_type=DispatcherId,
            register=lambda dispatcher: dispatcher.register_job_master(
                self._job_id, self.fencing_token, self.address
            ),
            on_connected=self._dispatcher_connected,
            on_lost=lambda reason: self._dispatcher_heartbeats.stop(),
            on_rejection=self._rejected,
            settings=registration,
        )

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # --- life cycle -------------------------------------------------------------------------------

    async def on_start(self) -> None:
        self._task_executors.start()
        self._resource_manager_heartbeats = self._heartbeats_of(self._resource_manager)
        self._dispatcher_heartbeats = self._heartbeats_of(self._dispatcher)
        high_availability = self._services.high_availability
        await self._dispatcher.start(high_availability.get_dispatcher_leader_retriever())
        await self._resource_manager.start(
            high_availability.get_resource_manager_leader_retriever()
        )
        self.create_task(self._start_scheduling(), name="start scheduling")

    def _heartbeats_of(self, leader: LeaderConnection[Any, Any]) -> HeartbeatManager[None, None]:
        return HeartbeatManager(
            self,
            heartbeat_settings(self._services.configuration),
            payload=lambda target: None,
            on_timeout=lambda target: leader.reconnect("its heartbeat timed out"),
            on_unreachable=lambda target: leader.reconnect("it is unreachable"),
        )

    async def on_stop(self) -> None:
        self._task_executors.stop()
        self._resource_manager_heartbeats.stop()
        self._dispatcher_heartbeats.stop()
        manager = self._resource_manager.target_gateway
        await self._dispatcher.stop()
        await self._resource_manager.stop()
        await self._coordinators.kill_all()
        if manager is not None:  # before the slots are free, which it would give to the job again
            try:
                await manager.disconnect_job_master(self._job_id, self.fencing_token, "it stops")
            except RpcError as error:
                log.info("job %s: no goodbye to the ResourceManager: %s", self._job_id, error)
        await self._close_slot_pool("the JobMaster stops")
        await self._services.high_availability.close()

    async def _start_scheduling(self) -> None:
        await self._start_slot_pool()
        self._apply(self._scheduler.start(self._now))

    async def _rejected(self, rejection: RegistrationRejection) -> None:
        log.warning("job %s: this JobMaster is not wanted: %s", self._job_id, rejection.reason)
        self.close()

    # --- carrying out decisions -------------------------------------------------------------------

    def _apply(self, actions: list[act.JobSchedulerAction]) -> None:
        """Begin all actions, in their order; what their calls answer comes back as events."""
        for action in actions:
            match action:
                case act.DeclareRequirements(requirements):
                    self._requirements = requirements
                    self._declare_requirements()
                case act.ReleaseSlots(allocations, reason):
                    self._tell_pool(lambda pool: pool.release_slots(allocations, reason))
                case SlotRequests():
                    for message in in_messages(action):
                        self._ask_pool(partial(SlotPoolGateway.request_slots, wanted=message))
                case CancelSlotRequests():
                    self._ask_pool(partial(SlotPoolGateway.cancel_slot_requests, cancelled=action))
                case ReturnSlots():
                    self._ask_pool(partial(SlotPoolGateway.return_slots, returned=action))
                case act.DeployTask():
                    self.create_task(self._deploy(action))
                case act.CancelTask():
                    self.create_task(self._cancel_task(action))
                case act.StartCoordinator():
                    self._start_coordinator(action)
                case act.StopCoordinator(vertex_id, attempt_number):
                    self._coordinators.stop((vertex_id, attempt_number))
                case act.ScheduleRestart(delay, generation):
                    self.schedule_run_async(delay, partial(self._restart_delay_over, generation))
                case act.ScheduleSlotRequestTimeout(delay, generation):
                    self.schedule_run_async(delay, partial(self._slots_timed_out, generation))
                case act.JobEnded(result, details):
                    self.create_task(self._end(result, details), name="report the job's end")

    def _restart_delay_over(self, generation: int) -> None:
        self._apply(self._scheduler.restart_delay_over(generation, self._now))

    def _slots_timed_out(self, generation: int) -> None:
        self._apply(self._scheduler.slot_request_timed_out(generation, self._now))

    async def _deploy(self, action: act.DeployTask) -> None:
        attempt_id = action.descriptor.attempt_id
        try:
            executor = self._task_executors.get(action.slot.location.resource_id)
            await executor.submit_task(action.descriptor, self.fencing_token)
        except (UnknownTaskExecutorError, SlotAllocationError, TaskError) as error:
            # not a slot of ours (any more): with it the next attempt would fail at once, too
            self._slot_lost(action.slot.allocation_id, str(error))
        except FlinkRayError as error:
            self._apply(self._scheduler.deploy_failed(attempt_id, str(error), self._now))

    async def _cancel_task(self, action: act.CancelTask) -> None:
        try:
            executor = self._task_executors.get(action.slot.location.resource_id)
            await executor.cancel_task(action.attempt_id, self.fencing_token)
        except FlinkRayError as error:
            self._apply(self._scheduler.cancel_failed(action.attempt_id, str(error), self._now))

    def _start_coordinator(self, action: act.StartCoordinator) -> None:
        vertex = next(v for v in self._graph.vertices if v.vertex_id == action.vertex_id)
        storage = self._services.arguments.storage_dir.rstrip("/")
        descriptor = SparkStageDescriptor(
            job_id=self._job_id,
            job_name=self._graph.name,
            vertex_id=vertex.vertex_id,
            attempt_number=action.attempt_number,
            listener_address=self.address,
            job_master_id=self.fencing_token,
            worker_group=action.slots[0].location.worker_group,
            parallelism=vertex.parallelism,
            slot_profile=vertex.slot_profile,
            code=vertex.invokable.code,
            blob_server=self._blob_server(),
            configuration={**self._stage_defaults(), **vertex.invokable.configuration},
            result_location=(
                f"{storage}/data/{self._job_id}/{vertex.vertex_id.short()}"
                f"-{self.fencing_token.short()}-{action.attempt_number}"
            ),
        )
        self._coordinators.start((vertex.vertex_id, action.attempt_number), descriptor)

    def _blob_server(self) -> str | None:
        dispatcher = self._dispatcher.leader_address
        return None if dispatcher is None else blob_server_beside(dispatcher)

    def _stage_defaults(self) -> dict[str, str]:
        java_home = self._services.configuration.get(options.JAVA_HOME)
        return {} if java_home is None else {options.JAVA_HOME.key: java_home}

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

    async def _start_slot_pool(self) -> None:
        spec = EndpointSpec(
            kind="SlotPool",
            name=slot_pool_process(self._job_id),
            factory="flinkray.actors.slot_pool:create_slot_pool",
            arguments=SlotPoolArguments(
                self._services.arguments, self._job_id, self.fencing_token, self.address
            ),
        )
        for starts_left in reversed(range(_SLOT_POOL_STARTS)):
            try:
                address = await self.rpc_service.spawn(spec)
                pool = await self.connect(address, SlotPoolGateway, self.fencing_token)
                break
            except RpcError as error:  # it died while it started
                if not starts_left:
                    raise
                log.warning("job %s: its SlotPool did not start: %s", self._job_id, error)
                await self.rpc_service.kill(spec.name)
        self._slot_pool = pool
        self.watch(pool, lambda reason: self.run_async(partial(self._slot_pool_lost, reason)))
        for location in self._task_executors.locations():  # they have registered meanwhile
            self._tell_pool_of(location)
        manager = self._resource_manager.target_gateway
        if manager is not None:
            await self._connect_slot_pool(manager)
        self._declare_requirements()
        waiting, self._for_next_pool = self._for_next_pool, []
        for call in waiting:
            self._tell_pool(call)

    def _tell_pool_of(self, location: WorkerLocation) -> None:
        self._tell_pool(lambda pool: pool.register_task_executor(location))

    def _declare_requirements(self) -> None:
        requirements = self._requirements
        if requirements is not None:
            self._tell_pool(lambda pool: pool.set_resource_requirements(requirements))

    async def _slot_pool_lost(self, reason: str) -> None:
        """A new pool knows of no slot: those that TaskExecutors hold are given back first.

        The scheduler hears of it first, so that the tasks' ends do not come as failures of their
        own.
        """
        if not self.is_running or self._scheduler.status.is_terminal:
            return
        cause = f"the SlotPool died: {reason}"
        log.warning("job %s: %s", self._job_id, cause)
        self._slot_pool = None
        self._held_slots.clear()
        self._for_next_pool.clear()
        self._apply(self._scheduler.slot_pool_lost(reason, self._now))
        self._task_executors.remove_all(cause)
        if self._scheduler.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING):
            await self._start_slot_pool()

    def _ask_pool(self, call: PoolCall) -> None:
        """What the next pool has to hear, should there be none at present."""
        if self._slot_pool is None:
            self._for_next_pool.append(call)
        else:
            self._tell_pool(call)

    def _tell_pool(self, call: PoolCall) -> None:
        """Calls reach the pool in the order of this method's; its death is the watch's to tell."""
        if self._slot_pool is not None:
            tell(self, call(self._slot_pool), f"the SlotPool of job {self._job_id}")

    async def _close_slot_pool(self, reason: str) -> None:
        pool, self._slot_pool = self._slot_pool, None
        if pool is not None:
            await _log_failure(pool.close_pool(reason), f"job {self._job_id}: closing its SlotPool")

    async def slots_changed(
        self,
        gained: tuple[AllocatedSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Last words of a pool that died, and slots of TaskExecutors that were lost since, do not
        count."""
        if self._slot_pool is None:
            return
        for slot in gained:
            if self._task_executors.is_connected(slot.location.resource_id):
                self._held_slots.add(slot)
        self._held_slots.remove(lost)
        if self._graph.needs_dedicated_workers:
            self._apply(self._scheduler.slots_changed(self._held_slots.all(), self._now))
        self._apply(self._scheduler.slot_events(events, self._now))
        for event in events:
            if isinstance(event, TaskExecutorWithoutSlots):
                self._let_go(event.resource_id)

    def _let_go(self, resource_id: ResourceID) -> None:
        """The job has no slot there any more, and none is being offered from there (JM-15)."""
        if not self._held_slots.on(resource_id) and not self._offers_in_flight[resource_id]:
            self._task_executors.remove(resource_id, "the job has no slot there any more")
            reason = "it was let go with its last slot"
            self._tell_pool(lambda pool: pool.release_task_executor(resource_id, reason))

    # --- the ResourceManager and the Dispatcher ---------------------------------------------------

    async def _resource_manager_connected(
        self, manager: ResourceManagerGateway, response: JobMasterRegistrationSuccess
    ) -> None:
        self._resource_manager_heartbeats.monitor_target(
            response.resource_manager_resource_id,
            lambda _: manager.heartbeat_from_job_master(self._resource_id),
        )
        if self._slot_pool is not None:
            await self._connect_slot_pool(manager)

    async def _connect_slot_pool(self, manager: ResourceManagerGateway) -> None:
        token = manager.fencing_token
        assert self._slot_pool is not None
        assert isinstance(token, ResourceManagerId)
        await _log_failure(
            self._slot_pool.connect_to_resource_manager(manager.address, token),
            f"job {self._job_id}: connecting its SlotPool to the ResourceManager",
        )

    async def _resource_manager_lost(self, reason: str) -> None:
        self._resource_manager_heartbeats.stop()
        self._tell_pool(lambda pool: pool.disconnect_resource_manager())
        # the next one knows nothing of what this one said, and would never take it back
        self._apply(self._scheduler.resources_short((), self._now))

    async def heartbeat_from_resource_manager(self, resource_id: ResourceID) -> None:
        self._resource_manager_heartbeats.request_heartbeat(resource_id, None)

    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        manager = self._resource_manager.target_gateway
        if manager is not None and manager.fencing_token == resource_manager_id:
            self._resource_manager.reconnect(reason)

    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        self._apply(self._scheduler.resources_short(shortages, self._now))
        if not self._graph.needs_dedicated_workers:
            self._tell_pool(lambda pool: pool.notify_not_enough_resources(shortages))

    async def _dispatcher_connected(
        self, dispatcher: DispatcherGateway, response: JobMasterToDispatcherRegistrationSuccess
    ) -> None:
        self._dispatcher_heartbeats.monitor_target(
            response.dispatcher_resource_id,
            lambda _: dispatcher.heartbeat_from_job_master(self._resource_id),
        )
        if response.cancel_requested:
            await self.cancel()

    async def heartbeat_from_dispatcher(self, resource_id: ResourceID) -> None:
        self._dispatcher_heartbeats.request_heartbeat(resource_id, None)

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register_task_executor(
        self, job_id: JobID, location: WorkerLocation
    ) -> TaskExecutorToJobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        if job_id != self._job_id:
            return RegistrationRejection(f"this JobMaster runs job {self._job_id}, not {job_id}")
        try:
            if await self._task_executors.add(location):
                self._tell_pool_of(location)
        except RpcError as error:
            return RegistrationFailure(f"no TaskExecutor at {location.address}: {error}")
        return TaskExecutorToJobMasterRegistrationSuccess(self._resource_id)

    def _task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        """Its slots, and the tasks in them, are gone."""
        cause = f"{resource_id} was lost: {reason}"
        self._held_slots.remove_all_on(resource_id)
        self._apply(self._scheduler.task_executor_lost(resource_id, cause, self._now))
        self._tell_pool(lambda pool: pool.release_task_executor(resource_id, cause))

    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        self._task_executors.get(resource_id)
        if self._slot_pool is None:
            raise RecipientUnreachableError(f"job {self._job_id} has no SlotPool at present")
        self._offers_in_flight[resource_id] += 1
        try:
            return await self._slot_pool.offer_slots(resource_id, offers)
        finally:
            self._offers_in_flight[resource_id] -= 1

    async def fail_slot(
        self, resource_id: ResourceID, allocation_id: AllocationID, reason: str
    ) -> None:
        self._slot_lost(allocation_id, reason)

    def _slot_lost(self, allocation_id: AllocationID, reason: str) -> None:
        self._apply(self._scheduler.slot_failed(allocation_id, reason, self._now))
        self._tell_pool(lambda pool: pool.fail_allocation(allocation_id, reason))

    async def update_task_execution_state(self, state: TaskExecutionState) -> None:
        self._apply(self._scheduler.task_state_changed(state, self._now))

    async def disconnect_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        self._task_executors.lose(resource_id, reason)

    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, payload: TaskExecutorHeartbeat
    ) -> None:
        self._task_executors.heartbeat(resource_id, payload)

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


async def _log_failure(call: Coroutine[Any, Any, None], what: str) -> None:
    """For calls whose failure is told by other means, such as a watch, and only noted here."""
    try:
        await call
    except FlinkRayError as error:
        log.info("%s: %s", what, error)


def _default_restart_strategy(services: ClusterServices) -> RestartStrategy:
    configuration = services.configuration
    if configuration.get(options.RESTART_STRATEGY) == "none":
        return NoRestart()
    return FixedDelayRestart(
        configuration.get(options.RESTART_FIXED_DELAY_ATTEMPTS),
        configuration.get(options.RESTART_FIXED_DELAY_DELAY),
    )
