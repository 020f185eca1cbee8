"""The TaskExecutor: has slots in a bundle of a worker group, and runs tasks in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    RefusedTask,
    SlotAnswer,
    TaskExecutorHeartbeat,
    TaskExecutorRegistration,
    WantedSlot,
)
from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.gateways.task_process import ChannelPlaces, PartitionPlaces
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.shared.job_master_watch import has_name_of_leader
from flinkray.actors.shared.notifications import tell
from flinkray.actors.shared.settings import heartbeat_settings, registration_settings
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.actors.task_executor.job_connections import JobLeaderService
from flinkray.actors.task_executor.kept_copies import KeptCopies
from flinkray.actors.task_executor.python_tasks import PythonTasks
from flinkray.actors.task_executor.resource_manager_registration import ResourceManagerRegistration
from flinkray.actors.task_executor.running_tasks import RunningTasks
from flinkray.actors.task_executor.slot_offering import SlotComparison, SlotOffering
from flinkray.actors.task_executor.task_execution import TaskExecution
from flinkray.actors.task_executor.task_processes import TASK_PROCESS_FACTORY
from flinkray.actors.task_executor.task_runners import TaskRunner, task_runners
from flinkray.actors.task_executor.task_table import TaskTable
from flinkray.core import options
from flinkray.core.errors import SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    FencingToken,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    ResultPartitionID,
    SlotID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.rpc import (
    RpcEndpoint,
    RpcService,
    TimerHandle,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder
from flinkray.scheduler.graph.job_graph import TASK_PROCESS_KINDS
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.scheduler.shared.tasks import (
    TaskDeployments,
)
from flinkray.scheduler.task_slots.task_slot_table import (
    CleanSlot,
    EndTask,
    SlotTableAction,
    TaskSlotTable,
)

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
"""Seconds that the slots have to become empty when the TaskExecutor stops."""


async def create_task_executor(
    rpc_service: RpcService,
    arguments: TaskExecutorArguments,
    task_process_factory: str = TASK_PROCESS_FACTORY,
) -> TaskExecutor:
    """Create the endpoint of the TaskExecutor's process."""
    services = ClusterServices.create(rpc_service, arguments.cluster)
    host = TaskExecutorHost.find(arguments.node)
    runners = task_runners(rpc_service, host, arguments.bundle_index, services.configuration)
    return TaskExecutor(rpc_service, services, arguments, host, runners, task_process_factory)


class TaskExecutor(RpcEndpoint, TaskExecutorGateway):
    """Endpoint of the TaskExecutor. Carries out the decisions of its TaskSlotTable about slots."""

    def __init__(
        self,
        rpc_service: RpcService,
        services: ClusterServices,
        arguments: TaskExecutorArguments,
        host: TaskExecutorHost,
        runners: Mapping[str, TaskRunner],
        task_process_factory: str = TASK_PROCESS_FACTORY,
    ) -> None:
        super().__init__(rpc_service, "taskexecutor")
        self._arguments = arguments
        self._services = services
        self._location = WorkerLocation(
            resource_id=arguments.resource_id,
            address=self.address,
            node_id=host.node.node_id,
            node_ip=host.node.node_ip,
            pid=host.pid,
            worker_group=arguments.worker_group,
            bundle_index=arguments.bundle_index,
        )
        configuration = services.configuration
        self._table = TaskSlotTable(
            arguments.resource_id,
            arguments.total_profile,
            arguments.number_of_slots,
            slot_timeout=configuration.get(options.RPC_ASK_TIMEOUT),
            keep_timeout=configuration.get(options.JOB_MASTER_TAKEOVER_TIMEOUT),
        )
        self._job_leaders = JobLeaderService(
            self,
            services.high_availability,
            registration_settings(configuration),
            heartbeat_settings(configuration),
            location=self._location,
            listener=self,
        )
        self._offers = SlotOffering(
            self, self._location, self._table, self._job_leaders, self._carry_out
        )
        self._comparison = SlotComparison(self._table)
        self._kept = KeptCopies()
        self._task_table = TaskTable(self, self._table, self._job_leaders, self._carry_out)
        parts = DeployedParts()
        python = PythonTasks(
            self,
            arguments,
            configuration,
            parts,
            factory=task_process_factory,
            on_reports=self._task_table.reported,
        )
        self._python = python
        running = RunningTasks(self, runners, on_reports=self._task_table.reported)
        self._tasks = TaskExecution(
            self._task_table,
            {**dict.fromkeys(runners, running), **dict.fromkeys(TASK_PROCESS_KINDS, python)},
            parts,
            python.results,
            self._job_leaders,
            self._carry_out,
        )
        self._resource_manager = ResourceManagerRegistration(
            self,
            services,
            TaskExecutorRegistration(
                self._location, arguments.total_profile, arguments.number_of_slots
            ),
            slots=self._table.report,
        )
        self._freed: dict[AllocationID, asyncio.Future[None]] = {}
        """For each slot that a caller waits for: completed when the slot is free."""
        self._slot_timer: TimerHandle | None = None

    @property
    def location(self) -> WorkerLocation:
        return self._location

    # --- life cycle -------------------------------------------------------------------------------

    async def on_start(self) -> None:
        if not self._arguments.is_dedicated:
            self._python.processes.start_ahead(self._arguments.number_of_slots)
        self.create_task(self._python.processes.sweep(), "sweep what was left here")
        await self._resource_manager.start()

    async def on_stop(self) -> None:
        """End all tasks, then disconnect from the ResourceManager and the JobMasters (TM-18)."""
        self._carry_out(self._table.close("the TaskExecutor stops"))
        if not self._table.is_empty:
            freed = [
                self._when_freed(allocation_id)
                for job_id in self._table.jobs()
                for allocation_id in self._table.allocations_of(job_id)
            ]
            _, late = await asyncio.wait(freed, timeout=CLOSE_TIMEOUT)
            if late:
                log.warning("%s stops with %d slots in use", self.address, len(late))
        await self._resource_manager.stop()
        await self._job_leaders.stop()
        await self._services.high_availability.close()

    # --- the ResourceManager ----------------------------------------------------------------------

    async def disconnect_resource_manager(
        self, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        self._resource_manager.disconnected(resource_manager_id, reason)

    async def heartbeat_from_resource_manager(
        self, resource_id: ResourceID, resource_manager_id: ResourceManagerId
    ) -> None:
        self._resource_manager.heartbeat_requested(resource_id, resource_manager_id)

    # --- slots ------------------------------------------------------------------------------------

    async def request_slots(
        self,
        wanted: tuple[WantedSlot, ...],
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> tuple[SlotAnswer, ...]:
        self._resource_manager.check(resource_manager_id)
        await self._check_is_no_predecessor(job_id, job_master_id, "request_slots")
        self._resource_manager.check(resource_manager_id)
        self._hold_unless_led_by(job_id, job_master_id)
        answers = [self._allocate(one, job_id) for one in wanted]
        self._schedule_slot_timeout()
        if any(answer.refusal is None for answer in answers):
            await self._job_leaders.add_job(job_id, job_master_address, job_master_id)
            self._offers.offer(job_id)
        return tuple(answers)

    def _allocate(self, wanted: WantedSlot, job_id: JobID) -> SlotAnswer:
        index, now = wanted.slot_index, self.counted_time()
        try:
            return SlotAnswer(
                self._table.allocate_slot(
                    index, job_id, wanted.allocation_id, wanted.profile, now, wanted.constraint
                )
            )
        except SlotAllocationError as error:
            return SlotAnswer(SlotID(self._location.resource_id, index), str(error))

    async def free_slot(
        self, allocation_id: AllocationID, leader_id: JobMasterId | ResourceManagerId, reason: str
    ) -> None:
        job_id = self._table.job_of(allocation_id)
        if job_id is None:
            return
        if isinstance(leader_id, ResourceManagerId):
            self._resource_manager.refuse_others(leader_id, "free_slot")
        else:
            self._job_leaders.refuse_others(job_id, leader_id, "free_slot")
        self._carry_out(self._table.free_slot(allocation_id, reason))
        if self._table.contains(allocation_id):
            await asyncio.shield(self._when_freed(allocation_id))

    async def free_inactive_slots(
        self, job_id: JobID, resource_manager_id: ResourceManagerId, reason: str
    ) -> None:
        if self._resource_manager.is_led_by(resource_manager_id):
            self._carry_out(self._table.free_inactive_slots_of_job(job_id, reason))

    async def can_be_released(self, resource_manager_id: ResourceManagerId) -> bool:
        self._resource_manager.refuse_others(resource_manager_id, "can_be_released")
        return self._table.is_empty and self._python.results.is_empty

    def _when_freed(self, allocation_id: AllocationID) -> asyncio.Future[None]:
        return self._freed.setdefault(allocation_id, self.rpc_service.loop.create_future())

    def _schedule_slot_timeout(self) -> None:
        if self._slot_timer is not None:
            self._slot_timer.cancel()
            self._slot_timer = None
        deadline = self._table.next_deadline()
        if deadline is not None:
            delay = max(0.0, deadline - self.counted_time())
            self._slot_timer = self.schedule_deadline(delay, self._free_timed_out_slots)

    def _free_timed_out_slots(self) -> None:
        self._carry_out(self._table.free_timed_out_slots(self.counted_time()))

    def _carry_out(self, actions: list[SlotTableAction]) -> None:
        to_end: list[ExecutionAttemptID] = []
        to_clean: list[CleanSlot] = []
        for action in actions:
            match action:
                case EndTask(attempt_id):
                    to_end.append(attempt_id)
                case CleanSlot():
                    to_clean.append(action)
        self._tasks.end(to_end)
        for slot in to_clean:
            self.create_task(self._clean_slot(slot), f"clean {slot.slot_id}")
        self._schedule_slot_timeout()

    async def _clean_slot(self, action: CleanSlot) -> None:
        job_id, allocation_id = action.job_id, action.allocation_id
        await self._tasks.clean_up(allocation_id, job_id)
        slot_id = self._table.slot_cleaned(allocation_id)
        if self._table.is_kept(allocation_id):
            log.info("%s is empty, and kept for job %s", action.slot_id, job_id)
            self._offers.offer(job_id)
            return
        log.info("%s is free: %s", slot_id, action.reason)
        freed = self._freed.pop(allocation_id, None)
        if freed is not None:
            freed.set_result(None)
        if slot_id is not None:
            self._resource_manager.slot_freed(slot_id, allocation_id)
        await self._leave_unless_used(job_id)

    async def _leave_unless_used(self, job_id: JobID) -> None:
        """Drop the job and disconnect from its JobMaster, if the job has neither a slot nor a
        result here (TM-14). If no JobMaster is registered, results without a slot are dropped too,
        because no later JobMaster would learn of them."""
        has_results = self._python.results.has_results_of(job_id)
        is_led = self._job_leaders.job_master(job_id) is not None
        if not self._table.allocations_of(job_id) and not (has_results and is_led):
            self._comparison.forget(job_id)
            self._kept.forget(job_id)
            self._tasks.forget_job(job_id)
            await self._job_leaders.remove_job(job_id)

    # --- jobs -------------------------------------------------------------------------------------

    async def disconnect_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, reason: str
    ) -> None:
        is_followed = self._job_leaders.said_goodbye(job_id, job_master_id)
        if is_followed and not self._table.holds_slots_of(job_id):
            self._free_slots_of_job(job_id, f"its JobMaster said goodbye: {reason}")

    async def job_master_lost(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
        reason: str,
    ) -> None:
        if self._resource_manager.is_led_by(resource_manager_id) and self._job_leaders.said_goodbye(
            job_id, job_master_id
        ):
            reason = f"the ResourceManager has lost its JobMaster: {reason}"
            self.job_master_gone(job_id, reason)

    async def job_master_changed(
        self,
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
        resource_manager_id: ResourceManagerId,
    ) -> None:
        self._resource_manager.refuse_others(resource_manager_id, "job_master_changed")
        await self._check_is_no_predecessor(job_id, job_master_id, "job_master_changed")
        self._resource_manager.refuse_others(resource_manager_id, "job_master_changed")
        await self._follow(job_id, job_master_address, job_master_id)

    async def take_over_job(
        self, job_id: JobID, job_master_address: str, job_master_id: JobMasterId
    ) -> bool:
        if not self._table.allocations_of(job_id):
            return False
        if self._job_leaders.is_succeeded_by(job_id, job_master_id):
            master = await self.connect(job_master_address, JobMasterGateway, job_master_id)
            await master.request_job_status()
            if not await has_name_of_leader(self.rpc_service, master, job_id):
                self._job_leaders.refuse_others(job_id, job_master_id, "take_over_job")
            await self._follow(job_id, job_master_address, job_master_id)
        return bool(self._table.allocations_of(job_id))

    async def _check_is_no_predecessor(
        self, job_id: JobID, job_master_id: JobMasterId, method: str
    ) -> None:
        """Raise FencingTokenError if *job_master_id* came before the job's present JobMaster. Used
        for reports of the ResourceManager about a new JobMaster, which may arrive after an even
        newer JobMaster has taken over the job here."""
        while self._job_leaders.is_succeeded_by(job_id, job_master_id):
            followed = self._job_leaders.job_master(job_id)
            if followed is None:
                return
            if await has_name_of_leader(self.rpc_service, followed, job_id):
                self._job_leaders.refuse_others(job_id, job_master_id, method)
            if self._job_leaders.job_master(job_id) is followed:
                return

    async def _follow(self, job_id: JobID, address: str, job_master_id: JobMasterId) -> None:
        if self._table.allocations_of(job_id):
            self._hold_unless_led_by(job_id, job_master_id)
            await self._job_leaders.add_job(job_id, address, job_master_id)
            self._offers.offer(job_id)

    async def adopt_slots(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        graph_id: ExecutionGraphID,
        allocations: tuple[AllocationID, ...],
    ) -> None:
        self._job_leaders.refuse_others(job_id, job_master_id, "adopt_slots")
        now = self.counted_time()
        self._carry_out(self._table.adopt_slots(job_id, frozenset(allocations), now))
        self._tasks.goes_on(job_id, graph_id)

    async def keep(
        self, job_id: JobID, job_master_id: JobMasterId, copy: int, piece: KeptPiece
    ) -> bool:
        if not self._table.allocations_of(job_id):
            return False
        self._job_leaders.refuse_others(job_id, job_master_id, "keep")
        return self._kept.keep(job_id, job_master_id, copy, piece)

    async def keep_no_more(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        if self._table.allocations_of(job_id):
            self._job_leaders.refuse_others(job_id, job_master_id, "keep_no_more")
            self._kept.forget(job_id)

    async def hand_over(
        self, job_id: JobID, job_master_id: JobMasterId, number: int
    ) -> KeptPiece | None:
        self._job_leaders.refuse_others(job_id, job_master_id, "hand_over")
        return self._kept.piece(job_id, number)

    async def heartbeat_from_job_master(
        self, resource_id: ResourceID, job_master_id: JobMasterId, report: AllocatedSlotReport
    ) -> None:
        self._job_leaders.heartbeat_received(resource_id, job_master_id, report)

    # called by the JobLeaderService

    def report_for(self, job_id: JobID, leader: FencingToken) -> TaskExecutorReport:
        if self._task_table.is_new_leader(job_id, leader):
            self._tasks.led_anew(job_id)
        slots = tuple(
            AllocatedSlot(offer.allocation_id, offer.slot_index, offer.profile, self._location)
            for offer in self._table.slots_in_use(job_id)
        )
        graphs, kv_states = self._task_table.report_for(job_id, leader)
        notes = self._kept.notes(job_id)
        return TaskExecutorReport(self._location, slots, graphs, kv_states, notes)

    def report_nothing(self, job_id: JobID) -> TaskExecutorReport:
        self._carry_out(self._table.adopt_slots(job_id, (), self.counted_time()))
        return TaskExecutorReport(self._location, (), ())

    def job_master_connected(self, job_id: JobID) -> None:
        self._table.job_master_registered(job_id, self.counted_time())
        self._schedule_slot_timeout()
        self._task_table.connected(job_id)
        self._offers.offer(job_id)

    def job_master_gone(self, job_id: JobID, reason: str) -> None:
        log.info("%s: job %s has lost its JobMaster: %s", self.address, job_id, reason)
        self._hold_slots_of_job(job_id, reason)
        self.create_task(self._leave_unless_used(job_id), f"leave job {job_id}")

    def slots_reported(self, report: AllocatedSlotReport) -> None:
        """Compare the slots here with the slots that a JobMaster knows (TM-16).
        A slot that only the JobMaster knows is reported to it as failed. A slot that only this
        TaskExecutor has is freed.
        """
        difference = self._comparison.compare(report)
        master = self._job_leaders.job_master(report.job_id)
        for allocation_id in difference.unknown_here:
            if master is not None:
                fail = master.fail_slot(
                    self._location.resource_id, allocation_id, "its TaskExecutor does not know it"
                )
                tell(self, fail, f"JobMaster of job {report.job_id}")
        for allocation_id in difference.unknown_there:
            self._carry_out(self._table.free_slot(allocation_id, "its JobMaster does not know it"))

    def heartbeat_payload(self, job_id: JobID) -> TaskExecutorHeartbeat:
        return TaskExecutorHeartbeat(self._task_table.of_job(job_id))

    # the slots of a job after a change of its JobMaster

    def _hold_unless_led_by(self, job_id: JobID, job_master_id: JobMasterId) -> None:
        if self._job_leaders.is_succeeded_by(job_id, job_master_id):
            self._hold_slots_of_job(job_id, f"job {job_id} has a new JobMaster")

    def _hold_slots_of_job(self, job_id: JobID, reason: str) -> None:
        """Reserve the job's slots for its next JobMaster. The tasks in them run on until this
        JobMaster says which of them it takes over, or until the timeout."""
        now = self.counted_time()
        self._carry_out(self._table.hold_slots_of_job(job_id, reason, now))

    def _free_slots_of_job(self, job_id: JobID, reason: str) -> None:
        """End the tasks in the job's slots, free the slots, and release its results (TM-28)."""
        log.info("%s: the slots of job %s are freed: %s", self.address, job_id, reason)
        self._carry_out(self._table.free_slots_of_job(job_id, reason))
        self._kept.forget(job_id)
        self._tasks.forget_job(job_id)
        self.create_task(self._leave_unless_used(job_id), f"leave job {job_id}")

    # --- tasks ------------------------------------------------------------------------------------

    async def submit_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> tuple[RefusedTask, ...]:
        return self._tasks.submit_all(deployments, job_master_id, blob_server)

    async def cancel_tasks(
        self, attempts: tuple[ExecutionAttemptID, ...], job_master_id: JobMasterId
    ) -> None:
        self._tasks.cancel_all(attempts, job_master_id)

    async def order_checkpoint(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        order: CheckpointOrder,
        attempts: tuple[ExecutionAttemptID, ...],
    ) -> None:
        self._tasks.order_checkpoint(job_id, job_master_id, order, attempts)

    async def release_partitions(
        self, job_id: JobID, job_master_id: JobMasterId, partitions: tuple[ResultPartitionID, ...]
    ) -> None:
        self._tasks.release_partitions(job_id, job_master_id, partitions)
        await self._leave_unless_used(job_id)

    async def request_io_metrics(
        self, job_id: JobID, job_master_id: JobMasterId
    ) -> tuple[TaskIOMetrics, ...]:
        return await self._tasks.io_metrics(job_id, job_master_id)

    # called by task processes, and by tasks elsewhere that read results

    async def tasks_reported(self, process_name: str, reports: tuple[TaskReport, ...]) -> None:
        self._python.reported(process_name, reports)

    async def find_partitions(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> PartitionPlaces:
        return self._python.results.find(job_id, data_set_id)

    async def find_channels(
        self, job_id: JobID, data_set_id: IntermediateDataSetID
    ) -> ChannelPlaces:
        return await self._python.results.find_channels(job_id, data_set_id)

    # requests of tasks to their JobMaster

    async def request_partition_state(
        self, job_id: JobID, partition: ResultPartitionID
    ) -> ExecutionState:
        return await self._master_of_job(job_id).request_partition_state(partition)

    def _master_of_job(self, job_id: JobID) -> JobMasterGateway:
        """Return the gateway of the job's JobMaster, to pass a task's request on. Raises
        JobMasterAwayError if no JobMaster is registered, or if it has not taken over the tasks here
        yet."""
        master = self._job_leaders.job_master(job_id)
        if master is None or self._table.holds_slots_of(job_id):
            raise JobMasterAwayError(f"job {job_id} has no JobMaster here at present")
        return master

    async def notify_kv_states_registered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        self._task_table.kv_states_registered(registrations)
        await self._master_of_job(job_id).notify_kv_states_registered(job_id, registrations)

    async def notify_kv_states_unregistered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        self._task_table.kv_states_unregistered(registrations)
        await self._master_of_job(job_id).notify_kv_states_unregistered(job_id, registrations)
