"""Slots for regions: the seam between scheduling and where slots come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    ResourceID,
)
from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import JobType
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.slots.logical_slot import FailPayload
from flinkray.scheduler.slots.slot_allocator import (
    ExecutionSlotAllocator,
    LogicalSlotAllocated,
    LogicalSlotFailed,
    SlotAllocatorAction,
)
from flinkray.scheduler.slots.slot_requests import (
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailure,
    SlotsLost,
)
from flinkray.scheduler.slots.slot_sharing import SharingVertex, slot_sharing_groups


class Placement(ABC):
    """Gives regions their slots, all of a region's together."""

    @abstractmethod
    def request(self, regions: Sequence[int], now: float) -> None:
        """These were scheduled and want their slots."""

    @abstractmethod
    def cancel(self, regions: Iterable[int]) -> None:
        """These do not wait any more, and slots that they have and do not use yet go back."""

    @abstractmethod
    def execution_ended(self, execution: Execution) -> None:
        """What it had of a slot goes back (EX-06)."""

    @abstractmethod
    def why_pending(self) -> str | None:
        """Why regions wait for slots; None: none waits."""


class SharedPlacement(Placement):
    """Slots from the SlotPool, shared by the subtasks of a slot-sharing group."""

    def __init__(
        self,
        graph: ExecutionGraph,
        regions: PipelinedRegions,
        outbox: Outbox,
        *,
        requests_made: int = 0,
        on_ready: Callable[[int, list[AllocatedSlot]], None],
        on_failed: Callable[[list[tuple[Execution, Failure]]], None],
        why_short: Callable[[], str],
    ) -> None:
        """*on_ready*: a region has all its slots, in the order of its vertices.  *on_failed*:
        attempts that lost their slots, or get none.  *why_short*: what the ResourceManager has said
        of missing slots; empty: nothing."""
        self._graph = graph
        self._regions = regions
        self._outbox = outbox
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._why_short = why_short
        vertices = tuple(_sharing_vertex(vertex) for vertex in graph.vertices)
        self.groups = slot_sharing_groups(vertices)
        """The slots that the whole graph needs."""
        self._allocator = ExecutionSlotAllocator(
            self.groups,
            is_batch=graph.job_graph.job_type is JobType.BATCH,
            requests_made=requests_made,
        )
        self._missing: dict[int, int] = {}
        """Regions that wait -> how many of their subtasks have no slot yet."""
        self._waiting_in: dict[AllocationID, dict[int, None]] = {}
        """Slots -> subtasks that have a share of it, while others of their region wait."""
        self._held: dict[AllocationID, ResourceID] = {}
        self._held_on: dict[ResourceID, dict[AllocationID, None]] = {}

    def request(self, regions: Sequence[int], now: float) -> None:
        vertices = []
        for index in regions:
            ordinals = self._regions.regions[index].vertices
            self._missing[index] = len(ordinals)
            vertices += [self._graph.subtasks[ordinal].vertex_id for ordinal in ordinals]
        if vertices:
            self._carry_out(self._allocator.allocate(vertices))

    def cancel(self, regions: Iterable[int]) -> None:
        waiting = []
        for index in regions:
            if self._missing.pop(index, None) is not None:
                for ordinal in self._regions.regions[index].vertices:
                    vertex_id = self._graph.subtasks[ordinal].vertex_id
                    self._waits_no_more(ordinal, self._slot_of(vertex_id))
                    waiting.append(vertex_id)
        if waiting:
            reason = "its tasks are not scheduled any more"
            self._carry_out(self._allocator.cancel(waiting, reason))
            self._carry_out(self._allocator.release(waiting, reason))

    def execution_ended(self, execution: Execution) -> None:
        if execution.slot is not None:
            self._carry_out(self._allocator.payload_ended((execution.attempt_id,)))

    def why_pending(self) -> str | None:
        if not self._missing:
            return None
        return f"{self._allocator.number_waiting} slots have not come yet."

    @property
    def requests_made(self) -> int:
        """So far: the next placement of the job must not use their ids again."""
        return self._allocator.requests_made

    # what the SlotPool and TaskExecutors say

    def slot_events(self, events: Iterable[SlotEvent]) -> None:
        """In the order in which the SlotPool told them."""
        events = tuple(events)
        lost: list[AllocationID] = []
        for event in events:
            if isinstance(event, SlotAllocated):
                where = event.slot.location.resource_id
                self._held[event.slot.allocation_id] = where
                self._held_on.setdefault(where, {})[event.slot.allocation_id] = None
            elif isinstance(event, SlotsLost):
                lost += event.allocations
        shares = [ordinal for a in lost for ordinal in self._forget(a)]
        self._carry_out(self._allocator.slot_events(events))
        # Slots that came and were lost by the same word have shares only now.
        shares += [ordinal for a in lost for ordinal in self._waiting_in.pop(a, ())]
        self._request_again(shares)

    def slot_lost(self, allocation_id: AllocationID, cause: str) -> None:
        """A reserved slot is gone; the pool may say so again."""
        self.slot_events((SlotsLost((allocation_id,), cause),))

    def task_executor_lost(self, resource_id: ResourceID, cause: str) -> None:
        """All slots on it are gone."""
        lost = tuple(self._held_on.get(resource_id, ()))
        if lost:
            self.slot_events((SlotsLost(lost, cause),))

    def pool_lost(self, cause: str) -> None:
        """All slots and requests are gone."""
        shares = [ordinal for a in tuple(self._held) for ordinal in self._forget(a)]
        self._carry_out(self._allocator.pool_lost(cause))
        self._request_again(shares)

    def _forget(self, allocation_id: AllocationID) -> Iterable[int]:
        where = self._held.pop(allocation_id, None)
        if where is not None:
            del self._held_on[where][allocation_id]
            if not self._held_on[where]:
                del self._held_on[where]
        return self._waiting_in.pop(allocation_id, ())

    def _request_again(self, ordinals: Iterable[int]) -> None:
        """They had a share of a slot that is lost, and nothing ran in it yet."""
        vertices = []
        for ordinal in ordinals:
            index = self._regions.of[ordinal]
            vertex_id = self._graph.subtasks[ordinal].vertex_id
            if index in self._missing and self._slot_of(vertex_id) is None:
                self._missing[index] += 1
                vertices.append(vertex_id)
        if vertices:
            self._carry_out(self._allocator.allocate(vertices))

    def _waits_no_more(self, ordinal: int, slot: AllocatedSlot | None) -> None:
        if slot is not None:
            shares = self._waiting_in.get(slot.allocation_id, {})
            shares.pop(ordinal, None)
            if not shares:
                self._waiting_in.pop(slot.allocation_id, None)

    def _slot_of(self, vertex_id: ExecutionVertexID) -> AllocatedSlot | None:
        logical = self._allocator.logical_slot(vertex_id)
        return None if logical is None else logical.slot

    def _carry_out(self, actions: Iterable[SlotAllocatorAction]) -> None:
        ready = []
        failed: list[tuple[Execution, Failure]] = []
        for action in actions:
            if isinstance(action, LogicalSlotAllocated):
                ordinal = self._ordinal_of(action.slot.vertex)
                index = self._regions.of[ordinal]
                if index in self._missing:
                    self._missing[index] -= 1
                    shares = self._waiting_in.setdefault(action.slot.slot.allocation_id, {})
                    shares[ordinal] = None
                    if not self._missing[index]:
                        ready.append(index)
            elif isinstance(action, LogicalSlotFailed):
                execution = self._graph.subtasks[self._ordinal_of(action.vertex)].current
                failed.append((execution, _no_slot(execution, action, self._why_short())))
            elif isinstance(action, FailPayload):
                self._add_lost(action.attempt_id, action.cause, failed)
            else:
                if isinstance(action, ReturnSlots):
                    for allocation_id in action.allocations:
                        self._forget(allocation_id)
                self._outbox.add(action)
        for index in ready:
            self._give(index)
        if failed:
            self._on_failed(failed)

    def _add_lost(
        self, attempt_id: ExecutionAttemptID, cause: str, to: list[tuple[Execution, Failure]]
    ) -> None:
        execution = self._graph.find(attempt_id)
        if execution is not None:
            text = f"{execution.task_name} lost its slot: {cause}"
            to.append((execution, failure_of(execution, text)))

    def _give(self, index: int) -> None:
        slots = []
        for ordinal in self._regions.regions[index].vertices:
            subtask = self._graph.subtasks[ordinal]
            logical = self._allocator.logical_slot(subtask.vertex_id)
            if logical is None:  # lost by the same word of the pool: it is requested again
                return
            slots.append(logical.slot)
        for ordinal in self._regions.regions[index].vertices:
            subtask = self._graph.subtasks[ordinal]
            logical = self._allocator.logical_slot(subtask.vertex_id)
            assert logical is not None
            self._waits_no_more(ordinal, logical.slot)
            logical.try_assign_payload(subtask.current.attempt_id)
        del self._missing[index]
        self._on_ready(index, slots)

    def _ordinal_of(self, vertex_id: ExecutionVertexID) -> int:
        vertex = self._graph.vertex(vertex_id.job_vertex_id)
        assert vertex is not None
        return vertex.first + vertex_id.subtask_index


def failure_of(execution: Execution, text: str, traceback: str | None = None) -> Failure:
    """A failure of one execution."""
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
        None if not vertex.inputs else lambda subtask: _near(vertex, subtask),
    )


def _near(vertex: ExecutionJobVertex, subtask: ExecutionVertexID) -> list[ExecutionVertexID]:
    """The first few producers of each input."""
    near = []
    for edge in vertex.inputs:
        group = edge.group_of_consumer(subtask.subtask_index)
        if len(group.partitions) <= _FEW:
            producers = edge.result.producer.subtasks
            near += [producers[partition].vertex_id for partition in group.partitions]
    return near


_FEW = 8
"""With more producers it does not matter much to be near to one of them (Flink's limit)."""
