"""A JobMaster's slots: what is asked of its SlotPool, and what is heard of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.gateways.messages import JobMasterArguments, SlotPoolArguments
from flinkray.actors.job_master.slot_pool_connection import SlotPoolConnection
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import RecipientUnreachableError
from flinkray.core.ids import AllocationID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint, HeartbeatSettings
from flinkray.scheduler.job import job_scheduler_actions as act
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirements,
    ResourceShortage,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.slots.held_slots import HeldSlots
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
    TaskExecutorWithoutSlots,
    in_messages,
)


class JobMasterSlots:
    """Lives on the JobMaster's main thread.

    Keeps a copy of what the SlotPool holds, and the connections to the TaskExecutors that have it:
    one that has neither a slot nor a result of the job is let go (JM-15).
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        arguments: JobMasterArguments,
        scheduler: JobScheduler,
        heartbeat: HeartbeatSettings,
        *,
        apply: Callable[[list[act.JobSchedulerAction]], None],
        resource_manager: Callable[[], ResourceManagerGateway | None],
        on_task_executor_lost: Callable[[ResourceID], None],
    ) -> None:
        """*apply* carries out what follows.  *on_task_executor_lost* is called before the scheduler
        hears of it."""
        self._job_master = job_master
        self._graph = arguments.job_graph
        self._scheduler = scheduler
        self._apply = apply
        self._on_task_executor_lost = on_task_executor_lost
        job_id = arguments.job_graph.job_id
        self.pool = SlotPoolConnection(
            job_master,
            SlotPoolArguments(
                arguments.cluster, job_id, arguments.job_master_id, job_master.address
            ),
            heartbeat,
            resource_manager=resource_manager,
            on_lost=self._pool_lost,
        )
        self.held = HeldSlots()
        self.task_executors = TaskExecutorConnections(
            job_master,
            job_id,
            heartbeat,
            allocations=self.held.on,
            on_lost=self._task_executor_lost,
        )
        self._offers_in_flight: Counter[ResourceID] = Counter()
        self._is_restarting = False
        """As the SlotPool was told last."""
        self._requirements: ResourceRequirements | None = None
        """As declared last: to be declared again to a new SlotPool."""

    @property
    def _now(self) -> float:
        return self._job_master.clock.monotonic()

    # --- what the scheduler wants -----------------------------------------------------------------

    def carry_out(self, action: act.JobSchedulerAction) -> None:
        """Begin; calls reach the pool in this order."""
        match action:
            case act.SetRequirements(requirements):
                self._requirements = requirements
                self._declare_requirements()
            case SlotRequests():
                for message in in_messages(action):
                    self._request_slots(message)
            case CancelSlotRequests():
                self.pool.tell(lambda pool: pool.cancel_slot_requests(action))
            case ReturnSlots():
                self.pool.tell(lambda pool: pool.return_slots(action))

    def _request_slots(self, wanted: SlotRequests) -> None:
        self.pool.tell(lambda pool: pool.request_slots(wanted))

    def _declare_requirements(self) -> None:
        requirements = self._requirements
        if requirements is not None:
            self.pool.tell(lambda pool: pool.set_resource_requirements(requirements))

    def status_changed(self, status: JobStatus) -> None:
        """While the job restarts its pool keeps what it has (SP-26)."""
        is_restarting = status is JobStatus.RESTARTING
        if is_restarting != self._is_restarting:
            self._is_restarting = is_restarting
            self.pool.tell(lambda pool: pool.set_job_restarting(is_restarting))

    # --- what the pool says -----------------------------------------------------------------------

    def changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[AllocatedSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Last words of a pool that died, and slots of TaskExecutors that were lost since, do not
        count."""
        if not self.pool.is_next(pool_number, news_number):
            return
        for slot in gained:
            if self.task_executors.is_connected(slot.location.resource_id):
                self.held.add(slot)
        self.held.remove(lost)
        if self._scheduler.wants_all_slots:
            self._apply(self._scheduler.slots_changed(self.held.all(), self._now))
        self._apply(self._scheduler.slot_events(events, self._now))
        for event in events:
            if isinstance(event, TaskExecutorWithoutSlots):
                self.let_go(event.resource_id)

    def _pool_lost(self, reason: str) -> None:
        """A new pool knows of no slot: those that TaskExecutors hold are given back first.

        The scheduler hears of it first, so that the tasks' ends do not come as failures of their
        own.
        """
        if not self._job_master.is_running or self._scheduler.status.is_terminal:
            return
        self.held.clear()
        self._is_restarting = False
        self._declare_requirements()
        self._apply(self._scheduler.slot_pool_lost(reason, self._now))
        self.task_executors.remove_all(f"the SlotPool died: {reason}")
        if self._scheduler.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING):
            self._job_master.create_task(self.pool.start(), name="start another SlotPool")

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register(self, location: WorkerLocation) -> None:
        """A TaskExecutor presents itself, again or not: it may have forgotten what it was sent.

        Raises:
            RpcError: nobody is at its address.
        """
        self._scheduler.task_executor_registered(location.resource_id)
        if await self.task_executors.add(location):
            self.pool.tell(lambda pool: pool.register_task_executor(location))

    async def offer(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        """The pool's answer.

        Raises:
            UnknownTaskExecutorError, RecipientUnreachableError: it may offer them again.
        """
        self.task_executors.get(resource_id)
        if self.pool.gateway is None:
            job_id = self._graph.job_id
            raise RecipientUnreachableError(f"job {job_id} has no SlotPool at present")
        self._offers_in_flight[resource_id] += 1
        try:
            return await self.pool.gateway.offer_slots(resource_id, offers)
        finally:
            self._offers_in_flight[resource_id] -= 1
            if not self._offers_in_flight[resource_id]:
                del self._offers_in_flight[resource_id]

    def let_go(self, resource_id: ResourceID) -> None:
        """The job has no slot there any more, and no result that it still needs, and no slot is
        being offered from there (JM-15)."""
        if (
            self.task_executors.is_connected(resource_id)
            and not self.held.on(resource_id)
            and not self._offers_in_flight[resource_id]
            and not self._scheduler.holds_partitions_on(resource_id)
        ):
            self._scheduler.task_executor_let_go(resource_id)
            self.task_executors.remove(resource_id, "the job has no slot there any more")
            reason = "it was let go with its last slot"
            self.pool.tell(lambda pool: pool.release_task_executor(resource_id, reason))

    def _task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        """Its slots, and the tasks in them, are gone."""
        cause = f"{resource_id} was lost: {reason}"
        self._on_task_executor_lost(resource_id)
        self.held.remove_all_on(resource_id)
        self._apply(self._scheduler.task_executor_lost(resource_id, cause, self._now))
        self.pool.tell(lambda pool: pool.release_task_executor(resource_id, cause))

    # --- slots that fail --------------------------------------------------------------------------

    def lost(self, allocation_id: AllocationID, reason: str) -> None:
        """It is not the job's (any more)."""
        self._apply(self._scheduler.slot_failed(allocation_id, reason, self._now))
        self.pool.tell(lambda pool: pool.fail_allocation(allocation_id, reason))

    # --- the ResourceManager ----------------------------------------------------------------------

    def resource_manager_lost(self) -> None:
        """The next one knows nothing of what this one said, and would never take it back."""
        self.pool.disconnect()
        self._apply(self._scheduler.resources_short((), self._now))

    def resources_short(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Why slots are missing now, the whole list."""
        self._apply(self._scheduler.resources_short(shortages, self._now))
        self.pool.tell(lambda pool: pool.notify_not_enough_resources(shortages))
