"""A JobScheduler of a job of tasks, with a world around it that does what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ResourceID,
    SlotRequestId,
)
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobEnded,
    JobSchedulerAction,
    JobStatusChanged,
    NoteFinished,
    NoteJob,
    ReleasePartitions,
    StartCoordinator,
)
from flinkray.scheduler.shared.slots import AllocatedSlot, SameWorkerGroup, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import (
    SharedPart,
    TaskDeployment,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequests,
)
from tests.scheduler.builders import (
    JOB,
    SMALL,
    allocated_slot,
    allocation,
    id_of,
    location,
    only,
)
from tests.scheduler.graphs import job

RESTARTS = FixedDelayRestart(5, 1.0)
_NEWS = (JobStatusChanged, NoteJob, NoteFinished)
"""What comes with many actions, and few tests look at."""
EARLY = (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING)


class TaskExecutorSide:
    """What one TaskExecutor was told: parts that it keeps, tasks that run."""

    def __init__(self, where: WorkerLocation) -> None:
        self.location = where
        self.graph_id: ExecutionGraphID | None = None
        self.parts: dict[int, SharedPart] = {}
        """Of that graph."""
        self.messages = 0

    def receive(self, action: DeployTasks) -> list[tuple[ExecutionAttemptID, TaskDeployment]]:
        """The tasks to begin; every part that they name is known by then."""
        self.messages += 1
        if self.graph_id != action.deployments.graph_id:
            self.graph_id, self.parts = action.deployments.graph_id, {}
        for part in action.deployments.parts:
            known = self.parts.get(part.key)
            assert known is None or known.version < part.version, "a part is sent once"
            self.parts[part.key] = part
        begun = []
        for task in action.deployments.tasks:
            vertex = self.parts[task.vertex].content
            assert isinstance(vertex, VertexInformation)
            assert all(key in self.parts for key in (action.deployments.job, *task.inputs))
            assert len(task.inputs) == len(vertex.inputs)
            begun.append((attempt_of(action.deployments.graph_id, vertex, task), task))
        return begun


class TasksUnderTest:
    """``log`` has all actions so far; each event advances the time by a second.

    Tasks are named by vertex and subtask, from 1: ``a1``.  Requests for slots are answered by
    :meth:`give`, each TaskExecutor (``te0``, ``te1``, ...) having *slots_each* slots.
    """

    def __init__(
        self,
        graph: JobGraph,
        *,
        slots_each: int = 1,
        random: Callable[[], float] = lambda: 0.5,
        kind: Callable[..., JobScheduler] = JobScheduler,
    ) -> None:
        self.now = 0.0
        self.log: list[JobSchedulerAction] = []
        self.graph = graph
        self.slots_each = slots_each
        self.wanted: dict[SlotRequestId, tuple[SlotRequest, SameWorkerGroup | None]] = {}
        self.reserved: dict[AllocationID, AllocatedSlot] = {}
        self.numbers = count()
        self.task_executors: dict[ResourceID, TaskExecutorSide] = {}
        self.tasks: dict[ExecutionAttemptID, TaskDeployment] = {}
        """Deployed and not reported as ended."""
        self.where: dict[ExecutionAttemptID, ResourceID] = {}
        graph_ids = (id_of(ExecutionGraphID, number) for number in count(1))
        self.scheduler = kind(
            graph,
            "JobMaster/jobmaster",
            new_graph_id=lambda: next(graph_ids),
            default_restart_strategy=FixedDelayRestart(3, 1.0),
            epoch_offset=1_000_000.0,
            now=0.0,
            random=random,
        )
        self.sources_start = True
        """Whether the coordinator of the sources is there as soon as it is wanted."""
        self.worker_group = "g"
        """In which constrained requests get their slots."""
        self.names = {vertex.vertex_id: vertex.name for vertex in graph.vertices}

    def tell(self, event: JobEvent) -> list[JobSchedulerAction]:
        """Pass the event to the scheduler and carry out its actions."""
        self.now += 1.0
        actions = self.scheduler.handle(event, self.now)
        for action in actions:
            self._carry_out(action)
            if self.sources_start and isinstance(action, StartCoordinator):
                actions += self._started(action.coordinator)
        self.log += actions
        return [a for a in actions if not isinstance(a, _NEWS)]

    def _started(self, coordinator: CoordinatorID) -> list[JobSchedulerAction]:
        if coordinator.kind is not CoordinatorKind.SOURCE_ENUMERATORS:
            return []
        return self.scheduler.handle(t.CoordinatorStarted(coordinator), self.now)

    def _carry_out(self, action: JobSchedulerAction) -> None:
        if isinstance(action, SlotRequests):
            self.wanted.update((r.request_id, (r, action.constraint)) for r in action.requests)
        elif isinstance(action, CancelSlotRequests):
            for request_id in action.request_ids:
                del self.wanted[request_id]
        elif isinstance(action, ReturnSlots):
            for allocation_id in action.allocations:
                del self.reserved[allocation_id]
        elif isinstance(action, DeployTasks):
            name = action.location.resource_id
            side = self.task_executors.setdefault(name, TaskExecutorSide(action.location))
            for attempt_id, task in side.receive(action):
                assert attempt_id not in self.where, "an attempt is deployed once"
                assert self.reserved[task.allocation_id].location == action.location
                self.tasks[attempt_id] = task
                self.where[attempt_id] = name

    # the pool

    def new_slot(self) -> AllocatedSlot:
        number = next(self.numbers)
        where = location(f"te{number // self.slots_each}")
        return AllocatedSlot(allocation(number), number % self.slots_each, SMALL, where)

    def slot_for(self, request: SlotRequest, constraint: SameWorkerGroup | None) -> AllocatedSlot:
        """Bundles of a worker group have a TaskExecutor each: ``te<bundle>-<group>``."""
        if constraint is None:
            return self.new_slot()
        assert 0 <= request.bundle < constraint.size
        return allocated_slot(next(self.numbers), request.bundle, self.worker_group)

    def give(self, number: int | None = None) -> list[JobSchedulerAction]:
        """Answer the oldest requests, all of them unless a number is given."""
        events: list[SlotEvent] = []
        for request_id in list(self.wanted)[:number]:
            slot = self.slot_for(*self.wanted.pop(request_id))
            self.reserved[slot.allocation_id] = slot
            events.append(SlotAllocated(request_id, slot))
        return self.tell(t.SlotsTold(tuple(events)))

    def lose_task_executor(self, name: str) -> list[JobSchedulerAction]:
        resource_id = ResourceID(name)
        self.reserved = {
            a: s for a, s in self.reserved.items() if s.location.resource_id != resource_id
        }
        self.tasks = {a: task for a, task in self.tasks.items() if self.where[a] != resource_id}
        self.task_executors.pop(resource_id, None)
        return self.tell(t.TaskExecutorLost(resource_id, "killed"))

    # tasks

    def attempt(self, name: str) -> ExecutionAttemptID:
        """The attempt of that task that was deployed last."""
        return [a for a in self.where if self.name(a) == name][-1]

    def name(self, attempt_id: ExecutionAttemptID) -> str:
        subtask = attempt_id.vertex
        return f"{self.names[subtask.job_vertex_id]}{subtask.subtask_index + 1}"

    def report(
        self,
        names: str | Iterable[ExecutionAttemptID],
        state: ExecutionState,
        failure: str | None = None,
        **more: object,
    ) -> list[JobSchedulerAction]:
        """All in one event."""
        attempts = (
            [self.attempt(name) for name in names.split()] if isinstance(names, str) else names
        )
        told = []
        for attempt_id in attempts:
            told.append(TaskExecutionState(JOB, attempt_id, state, failure, **more))  # type: ignore[arg-type]
            if state.is_terminal:
                self.tasks.pop(attempt_id, None)
        return self.tell(t.TasksReported(tuple(told)))

    def finish(self, names: str) -> list[JobSchedulerAction]:
        return self.report(names, ExecutionState.FINISHED)

    def fail(self, name: str, text: str = "it broke", **more: object) -> list[JobSchedulerAction]:
        return self.report(name, ExecutionState.FAILED, text, **more)

    def confirm_cancellations(self) -> list[JobSchedulerAction]:
        """Every task that was to be cancelled and still runs reports that it is."""
        asked = [a for c in only(self.log, CancelTasks) for a in c.attempts if a in self.tasks]
        return self.report(asked, ExecutionState.CANCELED)

    def run(self) -> TasksUnderTest:
        """Start, give all slots, report all as running."""
        self.tell(t.StartJob())
        self.give()
        self.report(list(self.tasks), ExecutionState.RUNNING)
        return self

    def restart(self) -> list[JobSchedulerAction]:
        """Confirm cancellations, let the last delay end, and give the slots."""
        self.confirm_cancellations()
        actions = self.tell(self.last_restart())
        return actions + self.give()

    def last_restart(self) -> t.RestartDelayOver:
        """The end of the delay of the last restart."""
        events = [timer.event for timer in only(self.log, StartTimer)]
        return [event for event in events if isinstance(event, t.RestartDelayOver)][-1]

    # what is to be seen

    def deployed(self, actions: Iterable[object]) -> str:
        """``a1#0 b1#1``: tasks and attempt numbers, in the order of the messages."""
        found = []
        for action in only(actions, DeployTasks):
            parts = self.task_executors[action.location.resource_id].parts
            for task in action.deployments.tasks:
                vertex = parts[task.vertex].content
                assert isinstance(vertex, VertexInformation)
                found.append(f"{vertex.name}{task.subtask_index + 1}#{task.attempt_number}")
        return " ".join(found)

    def cancelled(self, actions: Iterable[object]) -> str:
        return " ".join(
            f"{self.name(a)}#{a.attempt_number}"
            for action in only(actions, CancelTasks)
            for a in action.attempts
        )

    def released(self, actions: Iterable[object]) -> list[str]:
        return [
            f"{p.data_set_id.value[-1]}.{p.partition}#{p.attempt_number} on "
            f"{action.location.resource_id}"
            for action in only(actions, ReleasePartitions)
            for p in action.partitions
        ]

    def states(self) -> str:
        return " ".join(
            f"{vertex.name}{e.subtask_index + 1}:{e.state.name}#{e.attempt_number}"
            for vertex in self.scheduler.details().vertices
            for e in vertex.executions
        )

    @property
    def status(self) -> JobStatus:
        return self.scheduler.status

    @property
    def ended(self) -> JobEnded | None:
        found = only(self.log, JobEnded)
        assert len(found) <= 1
        return found[0] if found else None


def stream(restarts: int = 5, **arguments: object) -> TasksUnderTest:
    """A job with so many restarts."""
    graph = job(restart_strategy=FixedDelayRestart(restarts, 1.0), **arguments)  # type: ignore[arg-type]
    return TasksUnderTest(graph)
