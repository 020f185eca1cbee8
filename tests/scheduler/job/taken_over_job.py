"""A job whose JobMaster dies, with all that lives on without it: TaskExecutors, notes, slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobVertexID,
    ResourceID,
)
from flinkray.scheduler.checkpoints.actions import CloseCheckpointStores
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    AdoptSlots,
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
    NoteFinished,
    NoteJob,
)
from flinkray.scheduler.shared.slots import AllocatedSlot, SameWorkerGroup, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import (
    FinishedTask,
    JobNotes,
    ReportedGraph,
    ReportedTask,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import (
    PartitionLocations,
    SharedPart,
    TaskDeployment,
    TaskExecutionState,
    unpack_numbers,
)
from flinkray.scheduler.shared.transition import JobEvent
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotEvent,
    SlotRequest,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import JOB, id_of, only
from tests.scheduler.tasks_under_test import EARLY, TasksUnderTest

Producers = dict[tuple[IntermediateDataSetID, int], int]
"""Partition -> the number of the attempt that has produced it."""


class TakenOverJob(TasksUnderTest):
    """``lose_job_master`` and then ``take_over``; all else as before."""

    def __init__(
        self,
        graph: JobGraph,
        *,
        slots_each: int = 1,
        kind: Callable[..., JobScheduler] = JobScheduler,
    ) -> None:
        self.notes: JobNotes | None = None
        """The last ones that were acknowledged."""
        self.finished: dict[ExecutionVertexID, FinishedTask] = {}
        self.ledger = SlotLedger()
        self.slots: dict[AllocationID, AllocatedSlot] = {}
        """Those that the job has at TaskExecutors."""
        self.locations: dict[ResourceID, WorkerLocation] = {}
        """Of the TaskExecutors that are there."""
        self.task_states: dict[ExecutionAttemptID, ExecutionState] = {}
        """Of tasks, as their TaskExecutors know them."""
        self.ends: dict[ExecutionAttemptID, TaskExecutionState] = {}
        """Of those that have ended, and whose TaskExecutors are there."""
        self.deployments: dict[ExecutionAttemptID, TaskDeployment] = {}
        self.parts: dict[ExecutionAttemptID, tuple[SharedPart, ...]] = {}
        """Those that its deployment refers to, as they were then."""
        self.stopping: set[ExecutionAttemptID] = set()
        super().__init__(graph, slots_each=slots_each, kind=kind)
        self.kind = kind
        self.graph_ids = (id_of(ExecutionGraphID, number) for number in count(100))
        self.masters = 1
        self.is_copy = False
        """Whether nobody has the notes but a TaskExecutor."""
        self.acknowledged: dict[ExecutionAttemptID, int] = {}
        """The latest checkpoint of each attempt, as its TaskExecutor knows it."""
        self.carried_out: int | None = None
        """How many of the next event's actions are, as the JobMaster dies then; None: all."""

    # --- what is said to others -------------------------------------------------------------------

    def tell(self, event: JobEvent) -> list[JobSchedulerAction]:
        match event:
            case t.SlotsTold(events):
                self._slots_lost(events)
            case t.TasksReported(reports):
                self._acknowledged(reports)
        if self.carried_out is None:
            return super().tell(event)
        self.now += 1.0
        actions = self.scheduler.handle(event, self.now)
        if not only(actions[: self.carried_out], CloseCheckpointStores):  # the end is told with it
            actions = actions[: self.carried_out]
        self.log += actions
        for action in actions:
            self._carry_out(action)
        return actions

    def _acknowledged(self, reports: Iterable[object]) -> None:
        for report in reports:
            if isinstance(report, AcknowledgeCheckpoint):
                self.acknowledged[report.attempt_id] = report.checkpoint_id

    def _slots_lost(self, events: Iterable[SlotEvent]) -> None:
        events = tuple(events)
        for lost in only(events, SlotsLost):
            self.ledger.remove(lost.allocations)
            for allocation_id in lost.allocations:
                self.slots.pop(allocation_id, None)
        self.ledger.told(events)

    def _carry_out(self, action: JobSchedulerAction) -> None:
        match action:
            case NoteJob(notes):
                if self.notes is not None and self.notes.graph_id != notes.graph_id:
                    self.finished.clear()
                self.notes = notes
            case NoteFinished(tasks):
                self.finished.update((task.state.attempt_id.vertex, task) for task in tasks)
            case AdoptSlots(slots):
                self.ledger.adopted(slots)
                self.reserved = {
                    restored.slot.allocation_id: restored.slot
                    for restored in slots
                    if restored.request_id is not None
                }
            case SlotRequests():
                self.ledger.requested(action)
            case CancelSlotRequests():
                self.ledger.cancelled(action)
            case ReturnSlots():
                self.ledger.returned(action)
            case CancelTasks(_, attempts):
                self._cancelled(attempts)
        super()._carry_out(action)
        if isinstance(action, DeployTasks):
            self._deployed(action)

    def _cancelled(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        for attempt_id in attempts:
            if attempt_id in self.task_states:
                self.task_states[attempt_id] = ExecutionState.CANCELING

    def _deployed(self, action: DeployTasks) -> None:
        assert self.notes is not None
        assert self.notes.graph_id == action.deployments.graph_id
        side = self.task_executors[action.location.resource_id]
        for task in action.deployments.tasks:
            (attempt_id,) = (a for a, known in self.tasks.items() if known is task)
            self.deployments[attempt_id] = task
            self.task_states[attempt_id] = ExecutionState.DEPLOYING
            keys = (action.deployments.job, task.vertex, *task.inputs)
            self.parts[attempt_id] = tuple(side.parts[key] for key in dict.fromkeys(keys))

    def new_slot(self) -> AllocatedSlot:
        """A free one of the job, if there is one."""
        free = [s for a, s in self.slots.items() if a not in self.reserved and self.is_clean(a)]
        slot = free[0] if free else super().new_slot()
        self.slots[slot.allocation_id] = slot
        self.locations[slot.location.resource_id] = slot.location
        self.ledger.add(slot)
        return slot

    def slot_for(self, request: SlotRequest, constraint: SameWorkerGroup | None) -> AllocatedSlot:
        return self.new_slot()

    def is_clean(self, allocation_id: AllocationID) -> bool:
        """Whether nothing runs there."""
        return all(task.allocation_id != allocation_id for task in self.tasks.values())

    def report(
        self,
        names: str | Iterable[ExecutionAttemptID],
        state: ExecutionState,
        failure: str | None = None,
        **more: object,
    ) -> list[JobSchedulerAction]:
        attempts = [self.attempt(n) for n in names.split()] if isinstance(names, str) else [*names]
        self.happens(attempts, state, failure)
        return super().report(attempts, state, failure, **more)

    def happens(
        self,
        attempts: Collection[ExecutionAttemptID],
        state: ExecutionState,
        failure: str | None = None,
    ) -> None:
        """At their TaskExecutors, whether the JobMaster hears of it or not."""
        for attempt_id in attempts:
            if state.is_terminal:
                self.tasks.pop(attempt_id, None)
                self.task_states.pop(attempt_id, None)
                self.ends[attempt_id] = TaskExecutionState(JOB, attempt_id, state, failure)
            elif self.task_states.get(attempt_id) in EARLY:
                self.task_states[attempt_id] = state

    def lose_task_executor(self, name: str) -> list[JobSchedulerAction]:
        self.task_executor_dies(name)
        return super().lose_task_executor(name)

    def task_executor_dies(self, name: str) -> None:
        """And nobody hears of it."""
        resource_id = ResourceID(name)
        self.slots = {a: s for a, s in self.slots.items() if s.location.resource_id != name}
        self.ends = {a: e for a, e in self.ends.items() if self.where[a] != resource_id}
        self.task_states = {
            a: s for a, s in self.task_states.items() if self.where[a] != resource_id
        }
        self.tasks = {a: task for a, task in self.tasks.items() if self.where[a] != resource_id}
        self.task_executors.pop(resource_id, None)
        self.locations.pop(resource_id, None)
        self.ledger.remove_all_on(resource_id)

    # --- another JobMaster ------------------------------------------------------------------------

    def reports(self) -> list[TaskExecutorReport]:
        """Of all TaskExecutors, as they are now."""
        return [self._report(name) for name in sorted(self.locations)]

    def _report(self, name: ResourceID) -> TaskExecutorReport:
        graphs: dict[ExecutionGraphID, list[ReportedTask]] = {}
        parts: dict[ExecutionGraphID, dict[int, SharedPart]] = {}
        for attempt_id, where in self.where.items():
            if where != name or not (attempt_id in self.tasks or attempt_id in self.ends):
                continue
            deployment = self.deployments[attempt_id]
            ended = self.ends.get(attempt_id)
            state = self.task_states.get(attempt_id) or (ended.state if ended else None)
            assert state is not None
            graphs.setdefault(attempt_id.graph_id, []).append(
                ReportedTask(
                    deployment,
                    state,
                    ended,
                    attempt_id in self.stopping,
                    acknowledged=self.acknowledged.get(attempt_id, 0),
                )
            )
            of_graph = parts.setdefault(attempt_id.graph_id, {})
            of_graph.update((part.key, part) for part in self.parts[attempt_id])
        return TaskExecutorReport(
            self.locations[name],
            tuple(s for s in self.slots.values() if s.location.resource_id == name),
            tuple(
                ReportedGraph(g, tuple(parts[g].values()), tuple(tasks))
                for g, tasks in graphs.items()
            ),
        )

    def next_job_master(self) -> None:
        """In place of the one that is lost, with all that it has asked for and not got."""
        self.masters += 1
        self.carried_out = None
        self.wanted.clear()
        self.reserved.clear()
        self.ledger = SlotLedger()
        self.scheduler = self.kind(
            self.graph,
            "JobMaster/jobmaster",
            new_graph_id=lambda: next(self.graph_ids),
            default_restart_strategy=self.graph.restart_strategy,
            epoch_offset=1_000_000.0,
            now=self.now,
            random=lambda: 0.5,
        )
        self.recover()
        for name in sorted(self.locations):
            self.scheduler.forget_parts(name)

    def recover(self) -> None:
        """What is stored, before all else."""

    def take_over(
        self,
        reports: Iterable[TaskExecutorReport] | None = None,
        begun_checkpoints: Mapping[int, str] | None = None,
        *,
        has_run: bool = False,
    ) -> list[JobSchedulerAction]:
        """By the next JobMaster, with what is noted and reported."""
        reports = self.reports() if reports is None else list(reports)
        self.now += 1.0
        event = t.TakeOverJob(
            self.reached(self.notes),
            tuple(self.finished.values()),
            tuple(reports),
            begun_checkpoints or {},
            self.coordinated(),
            is_copy=self.is_copy,
            has_run=has_run,
        )
        actions = self.scheduler.handle(event, self.now)
        self.log += actions
        for action in actions:
            self._carry_out(action)
        return actions

    def reached(self, notes: JobNotes | None) -> JobNotes | None:
        """With what the coordinator of the sources says, if it is there."""
        return notes

    def coordinated(self) -> Collection[JobVertexID]:
        """The vertices whose coordinators are there."""
        return ()

    def replace_job_master(self) -> list[JobSchedulerAction]:
        """It dies, and the next one takes over."""
        self.next_job_master()
        return self.take_over()

    # --- what is to be seen -----------------------------------------------------------------------

    def producers(self, attempt_id: ExecutionAttemptID) -> Producers:
        """That its deployment has named."""
        inputs = set(self.deployments[attempt_id].inputs)
        found: Producers = {}
        for part in self.parts[attempt_id]:
            if part.key in inputs:
                assert isinstance(part.content, PartitionLocations)
                first = part.content.first_partition
                for number, attempt in enumerate(unpack_numbers(part.content.attempts)):
                    found[part.content.data_set_id, first + number] = attempt
        return found
