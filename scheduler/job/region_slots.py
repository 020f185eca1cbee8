"""Gets slots from the SlotPool for the regions that are scheduled."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    ResourceID,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionJobVertex,
)
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobType
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import AdoptSlots
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.slots.execution_slot_allocator import (
    ExecutionSlotAllocator,
    LogicalSlotAllocated,
    LogicalSlotFailed,
    SlotAllocatorAction,
)
from flinkray.scheduler.slots.logical_slots import FailPayload, LogicalSlot
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailure,
    SlotsLost,
)
from flinkray.scheduler.slots.slot_sharing import SharingVertex, slot_sharing_groups


class RegionSlots:
    """Requests slots for regions from the SlotPool and assigns them; a region gets all its slots
    together. The subtasks of a slot-sharing group share slots. If a group contains a Spark stage (a
    coordinated vertex), its slots are the bundles of one Ray placement group (a worker group): slot
    i is bundle i and holds subtask i."""

    def __init__(
        self, graph: ExecutionGraph, regions: PipelinedRegions, *, requests_made: int = 0
    ) -> None:
        self._graph = graph
        self._regions = regions
        vertices = tuple(_sharing_vertex(vertex) for vertex in graph.vertices)
        self.groups = slot_sharing_groups(vertices)
        """The slot-sharing groups with the slots that the whole graph needs."""
        self._allocator = ExecutionSlotAllocator(
            self.groups,
            is_batch=graph.job_graph.job_type is JobType.BATCH,
            requests_made=requests_made,
        )
        self.shortages: tuple[ResourceShortage, ...] = ()
        """Shortages that the ResourceManager has reported."""
        self._missing: dict[int, int] = {}
        """Waiting region -> number of its subtasks that have no slot yet."""
        self._waiting_in: dict[AllocationID, dict[int, None]] = {}
        """Slot -> ordinals of subtasks that share it while other subtasks of their region wait."""
        self._held: dict[AllocationID, ResourceID] = {}
        self._held_on: dict[ResourceID, dict[AllocationID, None]] = {}

    def request(self, regions: Iterable[int]) -> Steps:
        """Request slots for the subtasks of these regions, which were just scheduled."""
        vertices = []
        for index in regions:
            ordinals = self._regions.regions[index].vertices
            self._missing[index] = len(ordinals)
            vertices += [self._graph.subtasks[ordinal].vertex_id for ordinal in ordinals]
        return self._follow(self._allocator.allocate(vertices))

    def adopt(
        self, running: Iterable[tuple[Execution, AllocatedSlot]], free: Iterable[AllocatedSlot]
    ) -> AdoptSlots:
        """Assign to attempts of an earlier JobMaster the slots in which they run. Returns the
        action that tells the SlotPool to take over these slots and *free*: slots of the job that
        nothing uses."""
        adopted: dict[AllocationID, HeldSlot] = {}
        for execution, slot in running:
            restored = self._allocator.adopt(execution.attempt_id, slot)
            if restored is not None:
                adopted[slot.allocation_id] = restored
                self._hold(slot)
        return AdoptSlots((*adopted.values(), *map(HeldSlot, free)))

    def cancel(self, transition: t.CancelRegions, now: float) -> Steps:
        """Stop requesting slots for these regions, and give slots that they have got and do not use
        yet back to the SlotPool."""
        waiting = []
        for index in transition.regions:
            if self._missing.pop(index, None) is not None:
                for ordinal in self._regions.regions[index].vertices:
                    vertex_id = self._graph.subtasks[ordinal].vertex_id
                    self._waits_no_more(ordinal, self._slot_of(vertex_id))
                    waiting.append(vertex_id)
        if not waiting:
            return ()
        reason = "its tasks are not scheduled any more"
        actions = self._allocator.cancel(waiting, reason)
        return self._follow([*actions, *self._allocator.release(waiting, reason)])

    def attempts_over(self, transition: t.AttemptsOver, now: float) -> Steps:
        """Give the slot shares of ended attempts back to the SlotPool (EX-06). Shares of a Spark
        stage's attempts are kept until its driver has ended, too."""
        return self._take_back(
            e for e in transition.executions if not e.vertex.job_vertex.coordinator_is_there
        )

    def coordinator_ended(self, transition: t.CoordinatorEnded, now: float) -> Steps:
        """Give the slot shares of a Spark stage's ended attempts back to the SlotPool, because the
        stage's driver no longer uses the slots."""
        return self._take_back(e for e in transition.executions if e.state.is_terminal)

    def _take_back(self, executions: Iterable[Execution]) -> Steps:
        return self._follow(self._allocator.payload_ended([e.attempt_id for e in executions]))

    def pass_on(self, lost: Execution, after: Execution) -> None:
        """Let the next attempt of a subtask run in the slot of the lost attempt."""
        logical = self._allocator.logical_slot(lost.vertex.vertex_id)
        if logical is not None:
            logical.replace_payload(lost.attempt_id, after.attempt_id)

    def why_pending(self) -> str | None:
        """Return why regions wait for slots, for users; None if no region waits."""
        if not self._missing:
            return None
        return self._why_short or " ".join(
            _not_there(number, profile) for profile, number in self._allocator.waiting.items()
        )

    @property
    def _why_short(self) -> str:
        return " ".join(shortage.reason for shortage in self.shortages)

    @property
    def requests_made(self) -> int:
        """How many slots have been requested so far. The RegionSlots of the job's next execution
        graph goes on from this number, so that no request id is used twice."""
        return self._allocator.requests_made

    # events of the SlotPool and of TaskExecutors

    def slots_told(self, transition: t.SlotsTold, now: float) -> Steps:
        """Apply events of the SlotPool in their order: use slots that were given to requests, and
        fail attempts whose request was refused or whose slot was lost. A loss may be reported
        repeatedly."""
        return self._told(transition.events)

    def _told(self, events: tuple[SlotEvent, ...]) -> Steps:
        lost: list[AllocationID] = []
        for event in events:
            match event:
                case SlotAllocated(slot=slot):
                    self._hold(slot)
                case SlotsLost(allocations):
                    lost += allocations
        shares = [ordinal for a in lost for ordinal in self._forget(a)]
        steps = self._follow(self._allocator.slot_events(events))
        # Slots that came and were lost in the same batch have shares only now.
        shares += [ordinal for a in lost for ordinal in self._waiting_in.pop(a, ())]
        return [*steps, t.RequestSlotsAgain(tuple(shares))] if shares else steps

    def task_executor_lost(self, transition: t.TaskExecutorLost, now: float) -> Steps:
        """Take away all slots on a lost TaskExecutor: attempts in them fail, and regions that still
        wait request new slots."""
        lost = tuple(self._held_on.get(transition.resource_id, ()))
        return self._told((SlotsLost(lost, transition.cause),))

    def resources_short(self, transition: t.ResourcesShort, now: float) -> Steps:
        """Store why slots are missing, for :meth:`why_pending`. Requests that cannot be fulfilled
        are failed by the SlotPool, not here."""
        self.shortages = transition.shortages
        return ()

    def _hold(self, slot: AllocatedSlot) -> None:
        where = slot.location.resource_id
        self._held[slot.allocation_id] = where
        self._held_on.setdefault(where, {})[slot.allocation_id] = None

    def _forget(self, allocation_id: AllocationID) -> Iterable[int]:
        where = self._held.pop(allocation_id, None)
        if where is not None:
            del self._held_on[where][allocation_id]
            if not self._held_on[where]:
                del self._held_on[where]
        return self._waiting_in.pop(allocation_id, ())

    def request_again(self, transition: t.RequestSlotsAgain, now: float) -> Steps:
        """Request slots again for subtasks that still wait.
        Subtasks whose regions were canceled or scheduled again need nothing."""
        vertices = []
        for ordinal in transition.ordinals:
            index = self._regions.of[ordinal]
            vertex_id = self._graph.subtasks[ordinal].vertex_id
            if index in self._missing and self._allocator.has_nothing(vertex_id):
                self._missing[index] += 1
                vertices.append(vertex_id)
        return self._follow(self._allocator.allocate(vertices))

    def _waits_no_more(self, ordinal: int, slot: AllocatedSlot | None) -> None:
        if slot is not None:
            shares = self._waiting_in.get(slot.allocation_id, {})
            shares.pop(ordinal, None)
            if not shares:
                self._waiting_in.pop(slot.allocation_id, None)

    def _slot_of(self, vertex_id: ExecutionVertexID) -> AllocatedSlot | None:
        logical = self._allocator.logical_slot(vertex_id)
        return None if logical is None else logical.slot

    def _follow(self, actions: Iterable[SlotAllocatorAction]) -> Steps:
        steps: list[Step] = []
        ready = []
        failed: list[tuple[Execution, Failure]] = []
        for action in actions:
            match action:
                case LogicalSlotAllocated(share):
                    index = self._add_share(share)
                    if self._missing.get(index) == 0:
                        ready.append(index)
                case LogicalSlotFailed(vertex):
                    execution = self._graph.subtasks[self._ordinal_of(vertex)].current
                    failed.append((execution, _no_slot(execution, action, self._why_short)))
                case FailPayload(attempt_id, cause):
                    self._add_lost(attempt_id, cause, failed)
                case ReturnSlots(allocations):
                    for allocation_id in allocations:
                        self._forget(allocation_id)
                    steps.append(action)
                case _:
                    steps.append(action)
        if ready:
            steps.append(t.RegionsReady(tuple(ready)))
        if failed:
            steps.append(t.AttemptsFailed(tuple(failed)))
        return steps

    def use(self, regions: Iterable[int]) -> Steps:
        """Return the transitions that deploy these regions in their slots. Regions that were
        canceled or lost a slot are left out."""
        steps = []
        for index in regions:
            slots = self._give(index) if self._missing.get(index) == 0 else None
            if slots is not None:
                steps.append(t.DeployRegion(index, slots))
        return steps

    def _add_share(self, share: LogicalSlot) -> int:
        """Record a subtask's share of a slot.  Returns the region of the subtask."""
        ordinal = self._ordinal_of(share.vertex)
        index = self._regions.of[ordinal]
        if index in self._missing:
            self._missing[index] -= 1
            self._waiting_in.setdefault(share.slot.allocation_id, {})[ordinal] = None
        return index

    def _add_lost(
        self, attempt_id: ExecutionAttemptID, cause: str, to: list[tuple[Execution, Failure]]
    ) -> None:
        execution = self._graph.find(attempt_id)
        if execution is not None:
            text = f"{execution.task_name} lost its slot: {cause}"
            to.append((execution, failure_of(execution, text)))

    def _give(self, index: int) -> tuple[AllocatedSlot, ...] | None:
        """Return the region's slots, in the order of its subtasks, and put its attempts into them.
        None if a slot was lost in the same batch of events; the slot is requested again."""
        shares = []
        for ordinal in self._regions.regions[index].vertices:
            logical = self._allocator.logical_slot(self._graph.subtasks[ordinal].vertex_id)
            if logical is None:
                return None
            shares.append((ordinal, logical))
        for ordinal, logical in shares:
            self._waits_no_more(ordinal, logical.slot)
            logical.try_assign_payload(self._graph.subtasks[ordinal].current.attempt_id)
        del self._missing[index]
        return tuple(logical.slot for _, logical in shares)

    def _ordinal_of(self, vertex_id: ExecutionVertexID) -> int:
        vertex = self._graph.vertex(vertex_id.job_vertex_id)
        assert vertex is not None
        return vertex.first + vertex_id.subtask_index


def failure_of(execution: Execution, text: str, traceback: str | None = None) -> Failure:
    """Create a Failure that names the task and the location of *execution*."""
    return Failure(text, traceback, task=execution.task_name, location=execution.location)


_WAY_OUT = (
    "Lower the parallelism, ask for less per slot, add nodes or end other jobs; "
    "slot.request.timeout says how long jobs wait."
)


def _no_slot(execution: Execution, failed: LogicalSlotFailed, why_short: str) -> Failure:
    if failed.failure is SlotRequestFailure.UNFULFILLABLE:
        text = f"UnfulfillableSlotRequestError: {failed.reason}"
        return Failure(text, suppress_restarts=True, task=execution.task_name)
    if failed.failure is SlotRequestFailure.TIMED_OUT:
        timeout = "Could not allocate the required slot within slot request timeout."
        text = " ".join(part for part in (timeout, failed.reason, why_short, _WAY_OUT) if part)
    else:
        text = f"no slot ({failed.failure.value}): {failed.reason}"
    return Failure(f"NoResourceAvailableError: {text}", task=execution.task_name)


def _sharing_vertex(vertex: ExecutionJobVertex) -> SharingVertex:
    return SharingVertex(
        vertex.vertex.vertex_id,
        vertex.parallelism,
        vertex.vertex.slot_sharing_group,
        vertex.vertex.slot_profile,
        vertex.vertex.co_location_group,
        lambda subtask: _near(vertex, subtask),
        vertex.is_coordinated,
    )


def _near(vertex: ExecutionJobVertex, subtask: ExecutionVertexID) -> list[ExecutionVertexID]:
    """Return the subtasks near which the subtask should run: the producers of its inputs, except of
    inputs with many producers."""
    near = []
    for edge in vertex.inputs:
        group = edge.group_of_consumer(subtask.subtask_index)
        if len(group.partitions) <= _FEW:
            producers = edge.result.producer.subtasks
            near += [producers[partition].vertex_id for partition in group.partitions]
    return near


_FEW = 8
"""Number of producers per input above which locality does not matter (Flink's limit)."""


def _not_there(number: int, profile: ResourceProfile) -> str:
    """Return a text for users about missing slots, until the ResourceManager reports a reason."""
    each = "" if profile.is_zero() else f" ({profile} each)"
    what, has = ("slot", "has") if number == 1 else ("slots", "have")
    return f"{number} {what}{each} {has} not come yet."
