"""The ResourceManager: assigns slots to jobs, and starts and releases workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from flinkray.actors.gateways import JobMasterGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import (
    ClusterArguments,
    JobMasterRegistrationSuccess,
    TaskExecutorRegistration,
    TaskExecutorRegistrationSuccess,
)
from flinkray.actors.resource_manager.driver import ResourceManagerDriver, WorkerGroupHandle
from flinkray.actors.resource_manager.fenced_driver import FencedDriver
from flinkray.actors.resource_manager.registrations import (
    Members,
    RegisteredJobMaster,
    RegisteredTaskExecutor,
    RegistrantConnections,
)
from flinkray.actors.resource_manager.slot_allocation import SlotAllocation
from flinkray.actors.shared.cluster_services import (
    ClusterServices,
    LeaderFollower,
    see_who_leads,
)
from flinkray.actors.shared.exported_metrics import CLUSTER, samples_of
from flinkray.actors.shared.leadership import Leadership, lead_in_turn
from flinkray.actors.shared.notifications import tell
from flinkray.actors.shared.settings import heartbeat_settings
from flinkray.core import options
from flinkray.core.errors import (
    FlinkRayError,
    JobNotFoundError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    InstanceID,
    JobID,
    JobMasterId,
    LeaderSessionID,
    ResourceID,
    ResourceManagerId,
    SlotID,
)
from flinkray.core.version import VERSION
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatSender,
    MetricSample,
    RegistrationFailure,
    RegistrationRejection,
    RpcEndpoint,
    RpcService,
)
from flinkray.scheduler.reports.job_info import ClusterNumbers, ClusterOverview, TaskExecutorInfo
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.shared.slots import ResourceRequirements, SlotReport

log = logging.getLogger(__name__)


_RETRIEVAL_PATIENCE = 2.0
"""Seconds to wait for an election server that does not know yet that a JobMaster leads."""


class ResourceManagerError(FlinkRayError):
    """Raised, and ends the ResourceManager, when it cannot find out who leads a job."""


async def create_resource_manager(
    rpc_service: RpcService, arguments: ClusterArguments
) -> RpcEndpoint:
    """Create the main endpoint of a ResourceManager's process on Ray."""
    from flinkray.actors.resource_manager.ray_driver import RayResourceManagerDriver
    from flinkray.rpc import RayRpcService

    assert isinstance(rpc_service, RayRpcService)
    driver = RayResourceManagerDriver(rpc_service, arguments)
    return await lead_resource_manager(rpc_service, arguments, driver)


async def lead_resource_manager(
    rpc_service: RpcService,
    arguments: ClusterArguments,
    driver: ResourceManagerDriver,
) -> RpcEndpoint:
    """Return the main endpoint of a ResourceManager's process: a ResourceManager that knows the
    existing worker groups. If several processes may contend, a StandbyMaster that starts the
    ResourceManager when this process is elected."""
    services = ClusterServices.create(rpc_service, arguments)

    async def new_leader(leadership: Leadership) -> ResourceManager:
        manager = ResourceManager(rpc_service, services, leadership, driver)
        await manager.recover()
        return manager

    election = services.high_availability.get_resource_manager_leader_election()
    return await lead_in_turn(services, election, new_leader)


class ResourceManager(FencedRpcEndpoint[ResourceManagerId], ResourceManagerGateway):
    """Endpoint of the ResourceManager: registers TaskExecutors and JobMasters.
    Decisions about slots and workers are made by the SlotManager of its SlotAllocation.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        services: ClusterServices,
        leadership: Leadership,
        driver: ResourceManagerDriver,
    ) -> None:
        token = ResourceManagerId.of(leadership.session_id)
        super().__init__(rpc_service, "resourcemanager", token)
        self._services = services
        self._leadership = leadership
        self._driver = driver = FencedDriver(driver, leadership)
        self._resource_id = ResourceID(rpc_service.process_name)
        self._heartbeat_settings = heartbeat_settings(services.configuration)
        self._members = Members()
        self._dispatcher = LeaderFollower(DispatcherId, self)
        self._slots = SlotAllocation(
            self,
            token,
            self._members,
            driver,
            services.configuration,
            self._close_task_executor,
        )
        self._connecting_back = RegistrantConnections(self)
        self._recovered: list[tuple[WorkerGroupHandle, dict[int, ResourceID]]] = []
        self._bereaved: set[JobID] = set()
        """Jobs whose JobMaster was lost. Their slots are kept for the next JobMaster."""
        self._is_shutting_down = False

    # --- life cycle -------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Find the existing worker groups. Called once, before the endpoint is started."""
        groups = await self._driver.recover()
        occupied = await self._driver.occupied_bundles([group.group_id for group in groups])
        # Newest first: of two groups of one owner the first recovered stays; the older one was
        # about to be released.
        self._recovered = [(group, occupied[group.group_id]) for group in reversed(groups)]

    async def on_start(self) -> None:
        self.export_metrics(self._metrics)
        settings = self._heartbeat_settings
        silence = f"no heartbeat from it for {settings.timeout:g} s"
        self._task_executor_heartbeats: HeartbeatSender[None, SlotReport] = HeartbeatSender(
            self,
            settings,
            payload=lambda _: None,
            on_heartbeat=self._slots.report_slots,
            on_timeout=lambda target: self._task_executor_deaf(target, silence),
            on_unreachable=lambda target: self._task_executor_deaf(target, "it is unreachable"),
        )
        self._job_master_heartbeats: HeartbeatSender[None, None] = HeartbeatSender(
            self,
            settings,
            payload=lambda _: None,
            on_timeout=lambda target: self._job_master_deaf(target, silence),
            on_unreachable=lambda target: self._job_master_deaf(target, "it is unreachable"),
        )
        for group, occupied in self._recovered:
            self._slots.recover(group, occupied)
        configuration = self._services.configuration
        self._slots.start_up(configuration.get(options.RESOURCE_MANAGER_START_UP_TIME))
        await self._dispatcher.start(
            self._services.high_availability.get_dispatcher_leader_retriever()
        )
        await self._leadership.confirm(self)

    async def on_stop(self) -> None:
        await self._dispatcher.stop()
        await self._leadership.give_up()
        await self._services.high_availability.close()

    def _metrics(self) -> Iterator[MetricSample]:
        slots_total, slots_available = self._slots.numbers_of_slots()
        values = {
            "taskSlotsTotal": slots_total,
            "taskSlotsAvailable": slots_available,
            "numRegisteredTaskManagers": len(self._members.task_executors),
            "numJobsShortOfSlots": self._slots.jobs_short_of_slots,
        }
        return samples_of(CLUSTER, values, {})

    async def shut_down(self, dispatcher_id: DispatcherId) -> None:
        self._dispatcher.check(dispatcher_id, "shut_down")
        log.info("the cluster shuts down: all workers are released")
        self._is_shutting_down = True
        await self._slots.release_all("the cluster shuts down")
        self.close()

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register_task_executor(
        self, registration: TaskExecutorRegistration
    ) -> TaskExecutorRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        if self._is_shutting_down:
            return RegistrationRejection("the cluster shuts down")
        address = registration.location.address
        resource_id = registration.location.resource_id
        gateway = await self._connecting_back.to_task_executor(address)
        if isinstance(gateway, RegistrationFailure):
            return gateway
        self._close_task_executor(resource_id)
        instance_id = InstanceID.generate()
        self._members.task_executors[resource_id] = RegisteredTaskExecutor(
            registration,
            instance_id,
            gateway,
            self.watch(gateway, lambda reason: self._task_executor_lost(resource_id, reason)),
        )
        self._task_executor_heartbeats.monitor_target(
            resource_id,
            lambda _: gateway.heartbeat_from_resource_manager(
                self._resource_id, self.fencing_token
            ),
        )
        return TaskExecutorRegistrationSuccess(instance_id, self._resource_id)

    async def send_slot_report(
        self, resource_id: ResourceID, instance_id: InstanceID, report: SlotReport
    ) -> None:
        worker = self._members.task_executors.get(resource_id)
        if worker is None or worker.instance_id != instance_id:
            raise UnknownTaskExecutorError(
                f"{resource_id} is not registered at the ResourceManager as {instance_id}"
            )
        if worker.has_reported:
            self._slots.report_slots(resource_id, report)
            return
        worker.has_reported = True
        log.info("%s is registered with %d slots", resource_id, len(report.slots))
        total_profile = worker.registration.total_profile
        self._slots.add_task_executor(worker.location, total_profile, report)

    async def heartbeat_from_task_executor(
        self, resource_id: ResourceID, instance_id: InstanceID, report: SlotReport
    ) -> None:
        worker = self._members.task_executors.get(resource_id)
        if worker is None:
            return
        if worker.instance_id != instance_id:
            # an earlier registration has arrived late, and has replaced the last one
            self._disconnect(worker, f"it is not registered as {instance_id} any more")
            return
        self._task_executor_heartbeats.receive_heartbeat(resource_id, report)

    async def block_nodes(self, nodes: tuple[BlockedNode, ...]) -> None:
        self._slots.block_nodes(nodes)

    async def unblock_node(self, node_id: str) -> None:
        self._slots.unblock_node(node_id)

    async def request_blocked_nodes(self) -> tuple[BlockedNode, ...]:
        return self._slots.blocked_nodes()

    async def notify_slot_available(
        self, instance_id: InstanceID, slot_id: SlotID, allocation_id: AllocationID
    ) -> None:
        worker = self._members.task_executors.get(slot_id.resource_id)
        if worker is not None and worker.instance_id == instance_id:
            self._slots.slot_freed(slot_id, allocation_id)

    async def disconnect_task_executor(
        self, resource_id: ResourceID, instance_id: InstanceID, reason: str
    ) -> None:
        worker = self._members.task_executors.get(resource_id)
        if worker is not None and worker.instance_id == instance_id:
            self._task_executor_lost(resource_id, reason)

    def _task_executor_deaf(self, resource_id: ResourceID, reason: str) -> None:
        worker = self._members.task_executors.get(resource_id)
        if worker is not None:
            self._disconnect(worker, reason)
        self._task_executor_lost(resource_id, reason)

    def _disconnect(self, worker: RegisteredTaskExecutor, reason: str) -> None:
        """Tell a TaskExecutor that its registration has ended and that it must register again."""
        order = worker.gateway.disconnect_resource_manager(self.fencing_token, reason)
        tell(self, order, worker.location.resource_id)

    def _task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        if self._close_task_executor(resource_id):
            log.warning("%s is lost: %s", resource_id, reason)
            self._slots.task_executor_lost(resource_id, reason)

    def _close_task_executor(self, resource_id: ResourceID) -> bool:
        worker = self._members.task_executors.pop(resource_id, None)
        if worker is None:
            return False
        worker.watch.cancel()
        self._task_executor_heartbeats.unmonitor_target(resource_id)
        return True

    # --- JobMasters -------------------------------------------------------------------------------

    async def register_job_master(
        self,
        job_master_id: JobMasterId,
        job_master_resource_id: ResourceID,
        job_master_address: str,
        job_id: JobID,
    ) -> JobMasterRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        if self._is_shutting_down:
            return RegistrationFailure("the cluster shuts down")
        leader = await self._see_job_leader(job_id, job_master_address, job_master_id)
        if leader is None:
            return RegistrationFailure(f"nobody is known to lead job {job_id}")
        if leader != (job_master_address, job_master_id.leader_session()):
            return RegistrationFailure(f"job {job_id} is led by {leader[1]} at {leader[0]}")
        gateway = await self._connecting_back.to_job_master(
            job_master_address,
            job_master_id,
            job_id,
            is_another=self._is_another(job_id, job_master_id),
        )
        if not isinstance(gateway, JobMasterGateway):
            return gateway
        earlier = self._close_job_master(job_id)
        if earlier is not None and earlier.job_master_id != job_master_id:
            self._slots.job_master_gone(
                job_id, earlier.job_master_id, f"job {job_id} has a new JobMaster"
            )
        self._bereaved.discard(job_id)
        self._members.job_masters[job_id] = RegisteredJobMaster(
            job_id,
            job_master_id,
            job_master_resource_id,
            gateway,
            self.watch(
                gateway,
                lambda reason: self._job_master_lost(job_id, job_master_id, reason),
            ),
        )
        self._job_master_heartbeats.monitor_target(
            job_master_resource_id,
            lambda _: gateway.heartbeat_from_resource_manager(
                self._resource_id, self.fencing_token
            ),
        )
        self._slots.job_master_registered(job_id, job_master_address, job_master_id)
        return JobMasterRegistrationSuccess(self.fencing_token, self._resource_id)

    def _is_another(self, job_id: JobID, job_master_id: JobMasterId) -> bool:
        """Return whether the job has, or has lost, a registered JobMaster other than
        *job_master_id*."""
        present = self._members.job_masters.get(job_id)
        if present is None:
            return job_id in self._bereaved
        return present.job_master_id != job_master_id

    async def _see_job_leader(
        self, job_id: JobID, address: str, job_master_id: JobMasterId
    ) -> tuple[str, LeaderSessionID] | None:
        """Wait some seconds until the registering JobMaster is announced as the elected leader of
        the job. Returns the address and session of the leader announced last. None if no leader was
        announced. Without elections, *address* and the session of *job_master_id* are returned."""
        said = (address, job_master_id.leader_session())
        try:
            retriever = self._services.high_availability.get_job_master_leader_retriever(
                job_id, *said
            )
        except FlinkRayError as error:
            problem = ResourceManagerError(f"cannot follow the leader of job {job_id}: {error}")
            self.on_fatal_error(problem)
            raise problem from error
        return await see_who_leads(retriever, said, _RETRIEVAL_PATIENCE)

    async def declare_required_resources(
        self, job_master_id: JobMasterId, requirements: ResourceRequirements
    ) -> None:
        job_master = self._members.job_masters.get(requirements.job_id)
        if job_master is None or job_master.job_master_id != job_master_id:
            raise JobNotFoundError(
                requirements.job_id, "its JobMaster is not registered at the ResourceManager"
            )
        if not self._is_shutting_down:
            self._slots.declare(requirements)

    async def heartbeat_from_job_master(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        job_master = self._members.job_masters.get(job_id)
        if job_master is not None and job_master.job_master_id == job_master_id:
            self._job_master_heartbeats.receive_heartbeat(job_master.resource_id, None)

    async def disconnect_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, reason: str
    ) -> None:
        self._job_master_lost(job_id, job_master_id, reason, logging.INFO)

    async def release_job(self, job_id: JobID, dispatcher_id: DispatcherId, reason: str) -> None:
        self._dispatcher.check(dispatcher_id, "release_job")
        log.info("job %s has ended (%s), its workers are released", job_id, reason)
        self._close_job_master(job_id)
        self._bereaved.discard(job_id)
        await self._slots.release_job(job_id)

    def _job_master_deaf(self, resource_id: ResourceID, reason: str) -> None:
        for job_master in tuple(self._members.job_masters.values()):
            if job_master.resource_id == resource_id:
                goodbye = job_master.gateway.disconnect_resource_manager(self.fencing_token, reason)
                tell(self, goodbye, resource_id)
                log.warning("JobMaster of job %s is lost: %s", job_master.job_id, reason)
                self._close_job_master(job_master.job_id)
                self._bereaved.add(job_master.job_id)
                self._slots.job_master_deaf(job_master.job_id)

    def _job_master_lost(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        reason: str,
        level: int = logging.WARNING,
    ) -> None:
        job_master = self._members.job_masters.get(job_id)
        if job_master is not None and job_master.job_master_id == job_master_id:
            log.log(
                level, "JobMaster %s of job %s is gone: %s", job_master_id.short(), job_id, reason
            )
            self._close_job_master(job_id)
            self._bereaved.add(job_id)
            self._slots.job_master_gone(job_id, job_master_id, f"its JobMaster is gone: {reason}")

    def _close_job_master(self, job_id: JobID) -> RegisteredJobMaster | None:
        job_master = self._members.job_masters.pop(job_id, None)
        if job_master is not None:
            job_master.watch.cancel()
            self._job_master_heartbeats.unmonitor_target(job_master.resource_id)
        return job_master

    # --- clients ----------------------------------------------------------------------------------

    async def request_cluster_numbers(self) -> ClusterNumbers:
        return ClusterNumbers(
            VERSION,
            len(self._members.task_executors),
            *self._slots.numbers_of_slots(),
        )

    async def request_resource_overview(self) -> ClusterOverview:
        workers = self._slots.task_executors()
        workers += tuple(
            TaskExecutorInfo(worker.location, worker.registration.total_profile, 0, 0)
            for worker in self._members.task_executors.values()
            if not worker.has_reported
        )
        resources = await self._driver.cluster_resources()
        return ClusterOverview(
            version=VERSION,
            task_executors=workers,
            slots_total=sum(worker.number_of_slots for worker in workers),
            slots_available=sum(worker.free_slots for worker in workers),
            jobs=(),
            cluster_total=resources.total,
            cluster_available=resources.available,
            dashboard_url=await self._driver.dashboard_url(),
        )
