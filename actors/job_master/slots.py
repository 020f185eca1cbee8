"""A JobMaster's slots: requests to its SlotPool, and the pool's reports about slots."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.messages import JobMasterArguments, SlotPoolArguments
from flinkray.actors.job_master.left_by_past_job_masters import Left, PastPools
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.slot_pool_supervision import Call, SlotPoolSupervision
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import AllocationID, JobMasterId, ResourceID
from flinkray.rpc import FencedRpcEndpoint, HeartbeatSettings
from flinkray.scheduler.job import job_scheduler_actions as act
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.shared.slots import (
    ResourceRequirements,
    ResourceShortage,
    WorkerLocation,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.scheduler.shared.transition import JobEvent
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
    in_messages,
)

log = logging.getLogger(__name__)

_SLOTS_PER_MESSAGE = 2000
"""Number of slots in one message to a new SlotPool: well below the frame size."""

_ADOPTION_RETRY_DELAY = 0.1
"""Seconds until an unanswered list of adopted slots is sent to a TaskExecutor again."""


class JobMasterSlots:
    """Keeps the JobMaster's record of slots. Lives on the JobMaster's main thread.

    Also records the requests that the SlotPool has not answered, so that a new SlotPool can
    continue. A TaskExecutor that has neither a slot nor a result of the job is disconnected
    (JM-15).
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        arguments: JobMasterArguments,
        scheduler: JobScheduler,
        ledger: SlotLedger,
        task_executors: TaskExecutorConnections,
        heartbeat: HeartbeatSettings,
        *,
        handle: Callable[[JobEvent], None],
        is_certain: Callable[[], Awaitable[bool]],
    ) -> None:
        """Create the slots with the supervision of their SlotPool.

        Args:
            ledger: the record of the job's slots, updated here.
            handle: passes an event to the scheduler, and carries out its actions.
            is_certain: asks the election whether this JobMaster still leads.
        """
        self._job_master = job_master
        self._graph = arguments.job_graph
        self._scheduler = scheduler
        self._handle = handle
        self.ledger = ledger
        self._task_executors = task_executors
        self.pool = SlotPoolSupervision(
            job_master,
            SlotPoolArguments(
                arguments.cluster,
                arguments.job_graph.job_id,
                arguments.job_master_id,
                job_master.address,
            ),
            f"the SlotPool of {arguments.job_graph.text}",
            heartbeat,
            on_lost=self._pool_lost,
        )
        self._has_predecessors = arguments.has_predecessors
        self._handed_over: tuple[AllocationID, ...] = ()
        """Allocations of the slots that the pools of past JobMasters had."""
        self._past = PastPools(job_master, arguments.job_graph)
        self.notes = NotesForSuccessor(
            job_master,
            arguments.job_graph,
            task_executors,
            self.pool.tell,
            self._past if self._has_predecessors else None,
            is_certain,
        )
        self._letting_go: dict[ResourceID, None] = {}
        """TaskExecutors that the job does not need, unless the pool has just taken a slot there."""
        self._is_restarting = False
        """Whether the SlotPool was told that the job restarts."""
        self._shortages: tuple[ResourceShortage, ...] = ()

    # --- past JobMasters --------------------------------------------------------------------------

    async def left_by_past_job_masters(self) -> Left:
        """Ask past JobMasters' pools for everything they kept for a take-over. Must be called
        before this JobMaster's pool starts, which must know which slots to accept."""
        left = await self._past.ask()
        self._handed_over = left.allocations
        self.notes.adopt(left.parts)
        return left

    async def _expect(self, pool: SlotPoolGateway) -> None:
        await pool.expect_slots(self._handed_over)
        self._past.end()

    # --- what the scheduler wants -----------------------------------------------------------------

    def carry_out(self, action: act.SlotAction) -> None:
        """Carry out an action that concerns slots. The pool receives its calls in the order of
        actions."""
        match action:
            case act.AdoptSlots(slots):
                self.ledger.adopted(slots)
            case act.SetRequirements(requirements):
                self.ledger.set_requirements(requirements)
                self._set_requirements(requirements)
            case SlotRequests():
                self.ledger.requested(action)
                self._request_slots(action)
            case CancelSlotRequests():
                self.ledger.cancelled(action)
                self.pool.tell(lambda pool: pool.cancel_slot_requests(action))
            case ReturnSlots():
                self.ledger.returned(action)
                self.pool.tell(lambda pool: pool.return_slots(action))

    def _request_slots(self, wanted: SlotRequests) -> None:
        for message in in_messages(wanted):
            self.pool.tell(partial(_request, message))

    def _set_requirements(self, requirements: ResourceRequirements) -> None:
        self.pool.tell(lambda pool: pool.set_resource_requirements(requirements))

    def status_changed(self, status: JobStatus) -> None:
        """Tell the pool whether the job is restarting: then the pool keeps its slots (SP-26)."""
        is_restarting = status is JobStatus.RESTARTING
        if is_restarting != self._is_restarting:
            self._is_restarting = is_restarting
            self.ledger.job_restarting(is_restarting)
            self._tell_whether_restarting()

    def _tell_whether_restarting(self) -> None:
        is_restarting, kept = self._is_restarting, self.ledger.kept_worker_groups()
        self.pool.tell(lambda pool: pool.set_job_restarting(is_restarting, kept))

    # --- what the pool says -----------------------------------------------------------------------

    def changed(
        self,
        pool_number: int,
        news_number: int,
        gained: tuple[HeldSlot, ...],
        lost: tuple[AllocationID, ...],
        events: tuple[SlotEvent, ...],
    ) -> None:
        """Process a ``slots_changed`` message of the pool; see
        :meth:`JobMasterGateway.slots_changed`. Messages of a dead pool, and slots of TaskExecutors
        that were lost since, are ignored."""
        if not self.pool.is_next(pool_number, news_number):
            return
        for held in gained:
            if self._task_executors.is_connected(held.slot.location.resource_id):
                self.ledger.add(held.slot, held.constraint)
        self.ledger.remove(lost)
        self.count()
        self.ledger.told(events)
        self._handle(t.SlotsTold(events))
        for event in events:
            match event:
                case TaskExecutorWithoutSlots(resource_id):
                    self.let_go(resource_id)

    def count(self) -> None:
        """If the job is elastic, tell the scheduler which slots the job has now. Called after a
        takeover, because the pool does not report slots that were taken over."""
        if self._scheduler.wants_all_slots:
            self._handle(t.PoolSlotsChanged(self.ledger.all()))

    def _pool_lost(self) -> None:
        """Start a new pool in the background, and send it the lost pool's slots and open requests.
        The scheduler and the TaskExecutors do not notice.
        """
        if self._job_master.is_running and not self._scheduler.status.is_terminal:
            self._job_master.create_task(self.start_pool(), name="start another SlotPool")

    async def start_pool(self, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start a pool, and send it everything that it must know: requirements, slots, open
        requests, notes, the present ResourceManager, and last the TaskExecutors. Waits for *until*
        before the first call.

        Raises:
            RpcError: too many pools in a row died while starting.
        """
        await self.pool.start(until)
        requirements = self.ledger.requirements()
        if requirements is not None:
            self._set_requirements(requirements)
        slots = tuple(self.ledger.restored())
        steps = range(0, max(len(slots), not self.pool.is_first), _SLOTS_PER_MESSAGE)
        restored = [partial(_restore, slots[n : n + _SLOTS_PER_MESSAGE]) for n in steps]
        calls: list[Call] = [*self.notes.for_next_pool(), *restored]
        if self._has_predecessors:
            calls.append(self._expect)
        self.pool.restore(calls)
        for wanted in self.ledger.pending():
            self._request_slots(wanted)
        if self._is_restarting:
            self._tell_whether_restarting()
        if self._shortages:
            self._notify_shortages()
        self.pool.connect_again()  # the pool declares all of this in one message
        places = self._task_executors.locations
        if places:  # last, because the pool would refuse slots that it does not know to be required
            self.pool.tell(partial(_register, places))
        for resource_id in self._letting_go:
            self.pool.tell(partial(self._let_go, resource_id))

    # --- TaskExecutors ----------------------------------------------------------------------------

    async def register(self, report: TaskExecutorReport) -> None:
        """Register a TaskExecutor with its report.
        The next deployment there contains all shared information (``SharedPart``) again, because
        the TaskExecutor may have lost it.

        Raises:
            RpcError: no TaskExecutor is at its address.
        """
        resource_id = report.location.resource_id
        self._scheduler.forget_parts(resource_id)
        await self._task_executors.add(report.location)
        self._letting_go.pop(resource_id, None)
        self.pool.tell(partial(_register, (report.location,)))
        self.notes.copy.reported(report)

    def adopt_on(self, resource_id: ResourceID) -> None:
        """Begin to tell a TaskExecutor, in the background, which of its slots this JobMaster uses.
        Repeated until it answers or disconnects."""
        self._job_master.create_task(self._adopt(resource_id), name=f"adopt slots of {resource_id}")

    async def _adopt(self, resource_id: ResourceID) -> None:
        """Tell a TaskExecutor which of its slots this JobMaster uses, repeatedly until it answers.

        These slots include slots that were taken over. The TaskExecutor ends the tasks in all other
        slots that it has kept for a lost JobMaster of the job.
        """
        while self._task_executors.is_connected(resource_id):
            executor = self._task_executors.get(resource_id)
            allocations = self.ledger.on(resource_id)
            try:
                await executor.adopt_slots(
                    self._graph.job_id,
                    self._job_master.fencing_token,
                    self._scheduler.graph_id,
                    allocations,
                )
                return
            except (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError) as error:
                log.info("%s is told again which slots are adopted: %s", resource_id, error)
                await self._job_master.rpc_service.pause(_ADOPTION_RETRY_DELAY)
            except FlinkRayError as error:
                log.info("%s: another JobMaster takes over the slots there: %s", resource_id, error)
                return

    def let_go(self, resource_id: ResourceID) -> None:
        """Disconnect a TaskExecutor, unless the job has a slot or a needed result there (JM-15).

        The pool is asked first, because it may have accepted a slot there that it has not reported.
        """
        if (
            self._task_executors.is_connected(resource_id)
            and not self.ledger.on(resource_id)
            and not self._scheduler.holds_partitions_on(resource_id)
        ):
            self._letting_go[resource_id] = None
            self.pool.tell(partial(self._let_go, resource_id))

    async def _let_go(self, resource_id: ResourceID, pool: SlotPoolGateway) -> None:
        is_free = await pool.let_go(resource_id)
        # otherwise it has died, or has registered again: then the pool takes its offers again
        if resource_id in self._letting_go:
            del self._letting_go[resource_id]
            if is_free:
                self._scheduler.forget_parts(resource_id)
                self._task_executors.remove(resource_id, "the job has no slot there any more")
                self.notes.copy.lost(resource_id)

    def task_executor_lost(self, resource_id: ResourceID, reason: str) -> None:
        """Remove a lost TaskExecutor with its slots. The scheduler and the pool are told."""
        cause = f"{resource_id} was lost: {reason}"
        self._letting_go.pop(resource_id, None)
        self.ledger.remove_all_on(resource_id)
        self._handle(t.TaskExecutorLost(resource_id, cause))
        self.pool.tell(lambda pool: pool.release_task_executor(resource_id, cause))

    # --- slots that fail --------------------------------------------------------------------------

    def lost(self, allocation_id: AllocationID, reason: str) -> None:
        """Remove a slot that the job has lost, or that the job has not got after all. The scheduler
        and the pool are told."""
        self.ledger.remove((allocation_id,))
        self._handle(t.SlotsTold((SlotsLost((allocation_id,), reason),)))
        self.pool.tell(lambda pool: pool.fail_allocation(allocation_id, reason))

    # --- the ResourceManager ----------------------------------------------------------------------

    def resource_manager_lost(self) -> None:
        """Drop the shortages that the lost ResourceManager has reported.
        The next ResourceManager does not know them, and would never withdraw them.
        """
        self._shortages = ()
        self._handle(t.ResourcesShort(()))

    def resources_short(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Store why slots are missing now, as the ResourceManager says, in place of earlier
        reasons, and tell the scheduler and the pool. An empty list means that no slots are missing.
        """
        self._shortages = shortages
        self._handle(t.ResourcesShort(shortages))
        self._notify_shortages()

    def _notify_shortages(self) -> None:
        shortages = self._shortages
        self.pool.tell(lambda pool: pool.notify_not_enough_resources(shortages))


async def _request(wanted: SlotRequests, pool: SlotPoolGateway) -> None:
    await pool.request_slots(wanted)


async def _register(places: tuple[WorkerLocation, ...], pool: SlotPoolGateway) -> None:
    await pool.register_task_executors(places)


async def _restore(slots: tuple[HeldSlot, ...], pool: SlotPoolGateway) -> None:
    await pool.restore_slots(slots)
