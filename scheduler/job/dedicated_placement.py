"""Slots from a worker group of the job's own: subtask i of a Spark stage in bundle i."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flinkray.core.ids import AllocationID, ResourceID, WorkerGroupId
from flinkray.scheduler.execution.execution import Execution
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.job.job_scheduler_actions import (
    DeclareRequirements,
    ReleaseSlots,
    ScheduleSlotRequestTimeout,
)
from flinkray.scheduler.job.job_slots import JobSlots
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.placement import Placement, failure_of
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.slots.slot_assignment import required_slots


class DedicatedPlacement(Placement):
    """The job declares all its slots at its start; its stages, each of them a region, use the same
    ones in turn."""

    def __init__(
        self,
        graph: ExecutionGraph,
        outbox: Outbox,
        job_master_address: str,
        slot_request_timeout: float,
        *,
        next_generation: Callable[[], int],
        on_ready: Callable[[ExecutionJobVertex, tuple[AllocatedSlot, ...]], None],
        on_failed: Callable[[Failure, ExecutionJobVertex], None],
    ) -> None:
        """*on_ready*: all slots of a stage are there, in the order of its subtasks.  *on_failed*:
        they did not come."""
        self._graph = graph
        self._outbox = outbox
        self._requirements = required_slots(graph.job_graph, job_master_address)
        self._timeout = slot_request_timeout
        self._next_generation = next_generation
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._slots = JobSlots()
        self._waiting: ExecutionJobVertex | None = None
        self._generation = -1

    def declare(self) -> None:
        """What the job needs, from its start to its end."""
        self._outbox.add(DeclareRequirements(self._requirements))

    def request(self, regions: Sequence[int], now: float) -> None:
        (index,) = regions  # stages run one after another
        self._waiting = self._graph.vertices[index]
        self._try(now)
        if self._waiting is not None:
            self._generation = self._next_generation()
            self._outbox.add(ScheduleSlotRequestTimeout(self._timeout, self._generation))
            self._fail_when_unfulfillable()

    def cancel(self, regions: Iterable[int]) -> None:
        if self._waiting is not None and self._waiting.index in regions:
            self._waiting = None

    def execution_ended(self, execution: Execution) -> None:
        """The slot stays the job's: the next stage, or the next attempt, is assigned anew."""

    def why_pending(self) -> str | None:
        return None if self._waiting is None else self._slots.why_pending(self._waiting.vertex)

    def slots_changed(self, slots: tuple[AllocatedSlot, ...]) -> dict[AllocationID, str]:
        """All slots the pool holds now; the used ones that are missing, with a cause for each."""
        self._slots.held = slots
        return self._slots.missing_of(self._used())

    def try_deploy(self, now: float) -> None:
        """The slots may suffice now."""
        self._try(now)

    def drop(self, allocation_id: AllocationID) -> None:
        """Do not use the slot any more; the pool's next word decides."""
        self._slots.drop(allocation_id)

    def drop_task_executor(self, resource_id: ResourceID, cause: str) -> dict[AllocationID, str]:
        """Slots that are lost with a TaskExecutor, with the cause for each."""
        return self._slots.drop_task_executor(resource_id, self._used(), cause)

    def pool_lost(self) -> dict[AllocationID, str]:
        """The requirements are declared again, for the next pool; the used slots, with a cause for
        each."""
        self._slots.held = ()
        self.declare()
        return self._slots.missing_of(self._used())

    def resources_short(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Why slots are missing now (the whole list)."""
        self._slots.shortages = shortages
        self._fail_when_unfulfillable()

    def timed_out(self, generation: int) -> None:
        """The delay of a ScheduleSlotRequestTimeout is over (EX-18)."""
        vertex = self._waiting
        if vertex is not None and generation == self._generation:
            text = "Could not allocate the required slot within slot request timeout."
            reason = self._slots.why_pending(vertex.vertex)
            self._on_failed(Failure(f"NoResourceAvailableError: {text} {reason}"), vertex)

    def ends_of(self, causes: dict[AllocationID, str]) -> list[tuple[Execution, Failure]]:
        """Attempts whose slots are lost, with their failures."""
        ends = []
        for subtask in self._graph.subtasks:
            execution = subtask.current
            slot = execution.slot
            if slot is not None and slot.allocation_id in causes:
                text = f"{execution.task_name} lost its slot: {causes[slot.allocation_id]}"
                ends.append((execution, failure_of(execution, text)))
        return ends

    @property
    def worker_group(self) -> WorkerGroupId | None:
        """Of the slots that are used, or were last."""
        slots = (subtask.current.slot for subtask in reversed(self._graph.subtasks))
        return next((slot.location.worker_group for slot in slots if slot is not None), None)

    def _used(self) -> list[AllocatedSlot]:
        current = (s.current for s in self._graph.subtasks)
        return [e.slot for e in current if e.slot is not None and not e.state.is_terminal]

    def _try(self, now: float) -> None:
        vertex = self._waiting
        if vertex is None:
            return
        assignment = self._slots.assign(vertex.vertex)
        if assignment.slots is not None:
            self._waiting = None
            self._on_ready(vertex, assignment.slots)
        elif assignment.useless:
            reason = "not of the job's present worker group"
            self._outbox.add(ReleaseSlots(assignment.useless, reason))

    def _fail_when_unfulfillable(self) -> None:
        shortage = self._slots.unfulfillable
        vertex = self._waiting
        if shortage is not None and vertex is not None:
            text = f"UnfulfillableSlotRequestError: {shortage.reason}"
            self._on_failed(Failure(text, suppress_restarts=True), vertex)
