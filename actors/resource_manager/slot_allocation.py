"""Carries out the SlotManager's decisions and reports the results to the SlotManager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from flinkray.actors.gateways.messages import SlotAnswer, WantedSlot
from flinkray.actors.resource_manager.driver import ResourceManagerDriver, WorkerGroupHandle
from flinkray.actors.resource_manager.registrations import Members
from flinkray.actors.resource_manager.shortage_reporter import ShortageReporter
from flinkray.actors.resource_manager.worker_lifecycle import WorkerEvents, WorkerLifecycle
from flinkray.actors.shared.notifications import tell
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import (
    AllocationID,
    JobID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
    SlotID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import RpcEndpoint, TimerHandle
from flinkray.scheduler.reports.job_info import TaskExecutorInfo
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.resources.resource_tracker import SlotManagerSettings
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
    AskWhetherReleasable,
    CancelWorkerGroupRequest,
    FreeInactiveSlots,
    NotifyAllocationFailure,
    ReclaimSlot,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
    StopTaskExecutor,
)
from flinkray.scheduler.shared.slots import (
    ResourceRequirements,
    ResourceShortage,
    SlotReport,
    WorkerLocation,
)

log = logging.getLogger(__name__)


_NEWS_RETRY_DELAY = 0.5
"""Seconds until an unanswered message about a new JobMaster is sent to a TaskExecutor again."""


class SlotAllocation(WorkerEvents):
    """Connects a ResourceManager's TaskExecutors and JobMasters with its SlotManager, on the main
    thread.

    Every event is passed to the SlotManager together with the time. The actions that the
    SlotManager returns are carried out in order.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        resource_manager_id: ResourceManagerId,
        members: Members,
        driver: ResourceManagerDriver,
        configuration: ReadableConfig,
        forget_task_executor: Callable[[ResourceID], object],
    ) -> None:
        """Create the slot allocation with its SlotManager.
        *forget_task_executor* ends a TaskExecutor's registration. It is called before the
        TaskExecutor's process is ended.
        """
        self._endpoint = endpoint
        self._resource_manager_id = resource_manager_id
        self._members = members
        self._forget_task_executor = forget_task_executor
        self._check_delay = configuration.get(options.REQUIREMENT_CHECK_DELAY)
        self._settings = _settings(configuration)
        self._slot_manager = SlotManager(self._settings)
        self._launcher = WorkerLifecycle(endpoint, driver, self)
        self._shortages = ShortageReporter(
            endpoint,
            self._slot_manager,
            driver,
            self._launcher,
            members,
            notify=self._notify_not_enough_resources,
            delay=configuration.get(options.PENDING_REPORT_DELAY),
        )
        self._declared: dict[JobID, ResourceRequirements] = {}
        """Declarations that :meth:`declare` has received and the SlotManager has not."""
        self._check: TimerHandle | None = None
        self._check_due: float | None = None

    # --- jobs -------------------------------------------------------------------------------------

    def declare(self, requirements: ResourceRequirements) -> None:
        """Set a job's requirements.
        The SlotManager gets them a little later, together with the requirements of other jobs.
        """
        if not self._declared:
            self._endpoint.schedule_run_async(self._check_delay, self._check_requirements)
        self._declared[requirements.job_id] = requirements

    def _check_requirements(self) -> None:
        declared, self._declared = self._declared, {}
        if declared:
            self._carry_out(self._slot_manager.set_all_requirements(declared.values(), self._now()))

    def start_up(self, period: float | None) -> None:
        """Begin the start-up period: no requirement counts as unfulfillable for *period* seconds.

        None: no requirement ever counts as unfulfillable (RM-09).
        """
        self._slot_manager.set_fail_unfulfillable(period == 0)
        if period:
            self._endpoint.schedule_deadline(period, self._started_up)

    def _started_up(self) -> None:
        self._slot_manager.set_fail_unfulfillable(True)
        self._shortages.slots_changed()

    def job_master_registered(
        self, job_id: JobID, job_master_address: str, job_master_id: JobMasterId
    ) -> None:
        """Tell the TaskExecutors that have slots of a job which JobMaster leads the job now. They
        offer these slots, which may come from an earlier JobMaster, to this JobMaster."""
        self._shortages.forget(job_id)  # it may not know earlier reports
        for resource_id in self._slot_manager.task_executors_of(job_id):
            self._tell_of(resource_id, job_id, job_master_address, job_master_id)

    def _tell_of(
        self,
        resource_id: ResourceID,
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
    ) -> None:
        self._endpoint.create_task(
            self._keep_telling_of(resource_id, job_id, job_master_address, job_master_id),
            f"tell {resource_id} of JobMaster {job_master_id.short()}",
        )

    async def _keep_telling_of(
        self,
        resource_id: ResourceID,
        job_id: JobID,
        job_master_address: str,
        job_master_id: JobMasterId,
    ) -> None:
        """Send a TaskExecutor the address and id of the job's new JobMaster, repeatedly until it
        answers.

        The TaskExecutor must learn of this JobMaster, because the job gets no other slots in place
        of its slots there.
        """
        while True:
            worker = self._members.task_executors.get(resource_id)
            present = self._members.job_masters.get(job_id)
            if worker is None or present is None or present.job_master_id != job_master_id:
                return
            try:
                await worker.gateway.job_master_changed(
                    job_id, job_master_address, job_master_id, self._resource_manager_id
                )
                return
            except FlinkRayError as error:
                log.info("%s is not told of the master of job %s: %s", resource_id, job_id, error)
            await self._endpoint.rpc_service.pause(_NEWS_RETRY_DELAY)

    def job_master_gone(self, job_id: JobID, job_master_id: JobMasterId, reason: str) -> None:
        """Clear the requirements of a job whose JobMaster is gone, and tell its TaskExecutors.
        The job's workers stay for a while, for the next JobMaster.

        A TaskExecutor may not know of the death: the ResourceManager may have requested slots there
        while the JobMaster died.
        """
        for resource_id in self._slot_manager.task_executors_of(job_id):
            worker = self._members.task_executors.get(resource_id)
            if worker is not None:
                lost = worker.gateway.job_master_lost(
                    job_id, job_master_id, self._resource_manager_id, reason
                )
                tell(self._endpoint, lost, resource_id)
        self.job_master_deaf(job_id)

    def job_master_deaf(self, job_id: JobID) -> None:
        """Clear the requirements of a job whose JobMaster does not answer heartbeats.
        The JobMaster may live and register again. The job keeps its slots but gets no more.
        """
        self._forget_declaration(job_id)
        self._carry_out(self._slot_manager.clear_requirements(job_id, False, self._now()))

    async def release_job(self, job_id: JobID) -> None:
        """Release the slots and worker groups of an ended job. Returns when its groups are gone."""
        self._forget_declaration(job_id)
        self._carry_out(self._slot_manager.clear_requirements(job_id, True, self._now()))
        await self._launcher.released(job_id)

    def _forget_declaration(self, job_id: JobID) -> None:
        self._declared.pop(job_id, None)
        self._shortages.forget(job_id)

    async def release_all(self, reason: str) -> None:
        """Release all worker groups. Returns when none is left."""
        self._declared.clear()
        self._carry_out(self._slot_manager.shut_down(reason))
        await self._launcher.all_released()

    # --- workers ----------------------------------------------------------------------------------

    def recover(self, group: WorkerGroupHandle, occupied: dict[int, ResourceID]) -> None:
        """Take over a group of an earlier ResourceManager, with its live TaskExecutors."""
        live_bundles = tuple(sorted(occupied))
        log.info("worker group %s is taken over, TaskExecutors in %s", group.text, live_bundles)
        self._launcher.adopt(group, occupied)
        slots = self._settings.slots_of(group.bundles[0]) if group.owner is None else 1
        self._carry_out(
            self._slot_manager.recover_worker_group(
                group.group_id, group.bundles, slots, group.owner, live_bundles, self._now()
            )
        )

    def add_task_executor(
        self, location: WorkerLocation, total_profile: ResourceProfile, report: SlotReport
    ) -> None:
        """Add a TaskExecutor that has registered and sent its first report."""
        self._launcher.task_executor_registered(location.worker_group, location.bundle_index)
        self._carry_out(
            self._slot_manager.register_task_executor(location, total_profile, report, self._now())
        )
        jobs = {slot.job_id: None for slot in report.slots if slot.job_id is not None}
        for job_id in jobs:  # it may have lost one of these JobMasters meanwhile
            master = self._members.job_masters.get(job_id)
            if master is not None:
                self._tell_of(
                    location.resource_id, job_id, master.gateway.address, master.job_master_id
                )

    def report_slots(self, resource_id: ResourceID, report: SlotReport) -> None:
        """Pass a TaskExecutor's slot report to the SlotManager, except its first report, which goes
        to :meth:`add_task_executor`."""
        self._carry_out(self._slot_manager.report_slot_status(resource_id, report, self._now()))

    def slot_freed(self, slot_id: SlotID, allocation_id: AllocationID) -> None:
        # the job may have declared the return of the slot a moment before
        self._check_requirements()
        self._carry_out(self._slot_manager.slot_freed(slot_id, allocation_id, self._now()))

    def task_executor_lost(self, resource_id: ResourceID, cause: str) -> None:
        self._carry_out(self._slot_manager.task_executor_lost(resource_id, cause, self._now()))

    def block_nodes(self, nodes: tuple[BlockedNode, ...]) -> None:
        """Assign no more slots on these nodes until their block ends."""
        for node in nodes:
            log.warning("node %s is blocked for %g s: %s", node.node_id, node.duration, node.cause)
        self._carry_out(self._slot_manager.block_nodes(nodes, self._now()))

    def unblock_node(self, node_id: str) -> None:
        """End the block of a node, so that slots are assigned there again. Idempotent."""
        self._carry_out(self._slot_manager.unblock_node(node_id, self._now()))

    def blocked_nodes(self) -> tuple[BlockedNode, ...]:
        return self._slot_manager.blocked_nodes()

    def task_executors(self) -> tuple[TaskExecutorInfo, ...]:
        """Return a description of each TaskExecutor that has sent a slot report."""
        return self._slot_manager.task_executors()

    def numbers_of_slots(self) -> tuple[int, int]:
        """Return (number of slots, number of free slots). Only TaskExecutors that have sent a slot
        report are counted."""
        return self._slot_manager.numbers_of_slots()

    @property
    def jobs_short_of_slots(self) -> int:
        """The number of jobs that wait for slots because the cluster does not have enough."""
        return self._shortages.jobs_short

    # --- the SlotManager's decisions --------------------------------------------------------------

    def _carry_out(self, actions: Iterable[SlotManagerAction]) -> None:
        requests: dict[tuple[ResourceID, JobID], list[RequestSlot]] = {}
        for action in actions:
            match action:
                case StartWorkerGroup():
                    self._launcher.start_group(action)
                case CancelWorkerGroupRequest():
                    self._launcher.cancel_group(action.request_number)
                case ReleaseWorkerGroup():
                    self._release_worker_group(action)
                case AskWhetherReleasable():
                    self._endpoint.create_task(
                        self._ask_whether_releasable(action), f"release {action.group_id}?"
                    )
                case StartTaskExecutor():
                    self._launcher.start_task_executor(action)
                case StopTaskExecutor():
                    self._forget_task_executor(action.resource_id)
                    self._launcher.stop_task_executor(action.resource_id)
                case RequestSlot():
                    requests.setdefault((action.resource_id, action.job_id), []).append(action)
                case ReclaimSlot():
                    self._reclaim_slot(action)
                case FreeInactiveSlots(resource_id, job_id, reason):
                    worker = self._members.task_executors.get(resource_id)
                    if worker is not None:
                        free = worker.gateway.free_inactive_slots(
                            job_id, self._resource_manager_id, reason
                        )
                        tell(self._endpoint, free, resource_id)
                case NotifyAllocationFailure():
                    self._notify_task_executor_lost(action)
        for (resource_id, job_id), of_both in requests.items():
            self._endpoint.create_task(
                self._request_slots(resource_id, job_id, of_both),
                f"request {len(of_both)} slots of {resource_id}",
            )
        self._schedule_check()
        self._shortages.slots_changed()

    def _schedule_check(self) -> None:
        due = self._slot_manager.next_check_time()
        if due == self._check_due:
            return
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._check_due = due
        if due is not None:
            delay = max(0.0, due - self._now())
            self._check = self._endpoint.schedule_deadline(delay, self._check_is_due)

    def _check_is_due(self) -> None:
        self._check = self._check_due = None
        self._carry_out(self._slot_manager.check(self._now()))

    def _release_worker_group(self, action: ReleaseWorkerGroup) -> None:
        group = self._launcher.group_text(action.group_id)
        log.info("worker group %s is being released: %s", group, action.reason)
        for resource_id in action.task_executors:
            self._forget_task_executor(resource_id)
        self._launcher.release_group(action.group_id)

    async def _ask_whether_releasable(self, action: AskWhetherReleasable) -> None:
        """Ask the TaskExecutors of a group whether the group can be released, and tell the
        SlotManager. The group stays if one of them does not answer."""
        agreed = True
        for resource_id in action.task_executors:
            worker = self._members.task_executors.get(resource_id)
            if worker is None:
                return
            try:
                agreed &= await worker.gateway.can_be_released(self._resource_manager_id)
            except RpcError as error:
                log.info("%s does not say whether it can be released: %s", resource_id, error)
                agreed = False
        now = self._now()
        self._carry_out(self._slot_manager.may_be_released(action.group_id, agreed, now))

    async def _request_slots(
        self, resource_id: ResourceID, job_id: JobID, requests: list[RequestSlot]
    ) -> None:
        """Request several slots of a TaskExecutor in one message.
        Each request succeeds or fails on its own.
        """
        worker = self._members.task_executors.get(resource_id)
        job_master = self._members.job_masters.get(job_id)
        wanted = tuple(
            WantedSlot(one.slot_id.slot_index, one.allocation_id, one.profile, one.constraint)
            for one in requests
        )
        if worker is None or job_master is None:
            cause = f"{resource_id} or the JobMaster of job {job_id} is gone"
            answers = tuple(SlotAnswer(one.slot_id, cause) for one in requests)
        else:
            try:
                answers = await worker.gateway.request_slots(
                    wanted,
                    job_id,
                    requests[0].job_master_address,
                    job_master.job_master_id,
                    self._resource_manager_id,
                )
            except FlinkRayError as error:
                answers = tuple(SlotAnswer(one.slot_id, str(error)) for one in requests)
        now = self._now()
        actions: list[SlotManagerAction] = []
        for request, answer in zip(requests, answers, strict=True):
            if answer.refusal is None:
                actions += self._slot_manager.slot_request_succeeded(
                    answer.slot_id, request.allocation_id, now
                )
            else:
                log.info("slot %s could not be allocated: %s", request.slot_id, answer.refusal)
                actions += self._slot_manager.slot_request_failed(
                    request.slot_id, request.allocation_id, answer.refusal, now
                )
        self._carry_out(actions)

    def _reclaim_slot(self, action: ReclaimSlot) -> None:
        worker = self._members.task_executors.get(action.slot_id.resource_id)
        if worker is not None:
            free = worker.gateway.free_slot(
                action.allocation_id, self._resource_manager_id, action.reason
            )
            tell(self._endpoint, free, action.slot_id.resource_id)

    def _notify_task_executor_lost(self, action: NotifyAllocationFailure) -> None:
        """Tell the JobMaster of a job that a TaskExecutor is lost with all its slots.
        Called once for each slot. The JobMaster acts on the first call.
        """
        job_master = self._members.job_masters.get(action.job_id)
        if job_master is not None:
            lost = job_master.gateway.notify_task_executor_lost(
                self._resource_manager_id, action.resource_id, action.cause
            )
            tell(self._endpoint, lost, job_master.resource_id)

    def _notify_not_enough_resources(
        self, job_id: JobID, shortages: tuple[ResourceShortage, ...]
    ) -> None:
        job_master = self._members.job_masters.get(job_id)
        if job_master is not None:
            notify = job_master.gateway.notify_not_enough_resources(
                self._resource_manager_id, shortages
            )
            tell(self._endpoint, notify, job_master.resource_id)

    # --- results of the launcher's work ---------------------------------------------------------

    def worker_group_started(self, request_number: int, group: WorkerGroupHandle) -> None:
        now = self._now()
        self._carry_out(
            self._slot_manager.worker_group_started(request_number, group.group_id, now)
        )

    def worker_group_failed(self, request_number: int, cause: str) -> None:
        log.warning("a worker group could not be started: %s", cause)
        self._carry_out(self._slot_manager.worker_group_failed(request_number, cause, self._now()))

    def worker_group_lost(self, group_id: WorkerGroupId, cause: str) -> None:
        self._carry_out(self._slot_manager.worker_group_lost(group_id, cause, self._now()))

    def task_executor_start_failed(
        self, group_id: WorkerGroupId, bundle_index: int, cause: str
    ) -> None:
        group = self._launcher.group_text(group_id)
        log.warning("no TaskExecutor in bundle %d of %s: %s", bundle_index, group, cause)
        now = self._now()
        self._carry_out(
            self._slot_manager.task_executor_start_failed(group_id, bundle_index, cause, now)
        )

    def _now(self) -> float:
        return self._endpoint.counted_time()


def _settings(configuration: ReadableConfig) -> SlotManagerSettings:
    max_slots = configuration.get(options.MAX_SLOTS)
    return SlotManagerSettings(
        shared_worker_profile=ResourceProfile(
            configuration.get(options.TASK_EXECUTOR_CPU_CORES),
            configuration.get(options.TASK_EXECUTOR_MEMORY),
        ),
        shared_worker_slots=configuration.get(options.NUMBER_OF_TASK_SLOTS),
        new_allocation_id=AllocationID.generate,
        idle_timeout=configuration.get(options.TASK_EXECUTOR_IDLE_TIMEOUT),
        slot_request_timeout=configuration.get(options.RPC_ASK_TIMEOUT),
        task_executor_start_timeout=configuration.get(options.WORKER_REGISTRATION_TIMEOUT),
        previous_worker_timeout=configuration.get(options.PREVIOUS_WORKER_RECOVERY_TIMEOUT),
        spread_out=configuration.get(options.LOAD_BALANCE_MODE) == "slots",
        max_slots=max_slots if max_slots < options.UNLIMITED else None,
        redundant_workers=configuration.get(options.REDUNDANT_WORKERS),
        max_start_failures_per_minute=configuration.get(options.START_WORKER_MAX_FAILURE_RATE),
        start_retry_interval=configuration.get(options.START_WORKER_RETRY_INTERVAL),
    )
