"""A CheckpointCoordinator with a job of a few tasks around it, whose answers tests give by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.checkpoint.metadata import CheckpointedEdge
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID
from flinkray.scheduler.checkpoints.actions import (
    DiscardDirectory,
    DiscardFiles,
    OrderCheckpoint,
    OrderCoordinators,
    PrepareCheckpoint,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.coordinator import CheckpointCoordinator
from flinkray.scheduler.checkpoints.events import (
    CheckpointStep,
    CheckpointTimerOver,
    CheckpointTimerPurpose,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, checkpoint_of
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import VertexOperator
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import GRAPH, JOB, location, only
from tests.scheduler.checkpoints.checkpointed import file, named, vertex
from tests.scheduler.graphs import vertex_id

Actions = list[CheckpointStep]
Kind = TypeVar("Kind", TriggerCheckpoint, CheckpointCompleted, CheckpointAborted)
Reason = CheckpointFailureReason
FOREVER = 1e9


@dataclass
class Input:
    producer: int
    pointwise: bool
    parallelism: int

    def producers_of(self, subtask_index: int) -> range:
        if self.pointwise:
            return range(subtask_index, subtask_index + 1)
        return range(self.parallelism)


@dataclass
class Vertex:
    name: str
    parallelism: int
    inputs: Sequence[Input] = ()
    states: list[ExecutionState] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    max_parallelism: int = 128
    edges: tuple[CheckpointedEdge, ...] = ()
    hands_over_to: tuple[str, ...] = ()
    brings_back_of: str | None = None

    def __post_init__(self) -> None:
        self.states = [ExecutionState.RUNNING] * self.parallelism
        self.attempts = [0] * self.parallelism
        self.operators = (VertexOperator(self.name, self.name),)

    @property
    def vertex_id(self) -> JobVertexID:
        return vertex_id(self.name)

    def attempt(self, subtask_index: int) -> ExecutionAttemptID:
        subtask = ExecutionVertexID(self.vertex_id, subtask_index)
        return ExecutionAttemptID(GRAPH, subtask, self.attempts[subtask_index])

    def state(self, subtask_index: int) -> ExecutionState:
        return self.states[subtask_index]


class Topology:
    """Sources ``a``, which ``b`` reads."""

    def __init__(self, a: int = 1, b: int = 1, *, pointwise: bool = False) -> None:
        self.vertices = [Vertex("a", a), Vertex("b", b, [Input(0, pointwise, a)])]
        self.unfinished: list[str] = []

    def by_location(
        self, attempts: Iterable[ExecutionAttemptID]
    ) -> dict[WorkerLocation, tuple[ExecutionAttemptID, ...]]:
        """All tasks run on one TaskExecutor."""
        here = tuple(attempts)
        return {location(): here} if here else {}

    @property
    def attempts(self) -> list[ExecutionAttemptID]:
        return [v.attempt(i) for v in self.vertices for i in range(v.parallelism)]


MANUAL = checkpoint_of(CheckpointConfiguration())


def configuration(**changed: object) -> CheckpointConfiguration:
    """Checkpoints on request; any number of failures."""
    return CheckpointConfiguration(**{"tolerable_failures": -1, **changed})  # type: ignore[arg-type]


class JobWithCheckpoints:
    """Its tasks are known as ``a0``, ``b0`` and so on."""

    def __init__(
        self,
        config: CheckpointConfiguration | None = None,
        topology: Topology | None = None,
        *,
        coordinators: tuple[str, ...] = (),
        random: float = 0.5,
        allow_non_restored_state: bool = False,
    ) -> None:
        self.topology = topology or Topology()
        self.now = 0.0
        self.last_id = 0
        self.requests = 0
        self.coordinator = CheckpointCoordinator(
            JOB,
            config or configuration(),
            lambda: self.topology,
            coordinators=coordinators,
            epoch_offset=1000.0,
            random=lambda: random,
            allow_non_restored_state=allow_non_restored_state,
        )

    # what others do

    def request(self, properties: CheckpointProperties | None = None) -> Actions:
        """The requests are numbered from 1."""
        self.requests += 1
        return self.coordinator.request(self.requests, properties, self.now)

    def prepare(self, actions: Actions, checkpoint_id: int | None = None) -> Actions:
        """Answer the PrepareCheckpoint among these actions."""
        (wanted,) = only(actions, PrepareCheckpoint)
        self.last_id = self.last_id + 1 if checkpoint_id is None else checkpoint_id
        directory = f"chk-{self.last_id}"
        return self.coordinator.prepared(wanted.number, self.last_id, directory, self.now)

    def begin(self, properties: CheckpointProperties | None = None) -> int:
        """Request one, up to the trigger of tasks: its id."""
        actions = self.prepare(self.request(properties))
        assert orders(actions, TriggerCheckpoint)
        return self.last_id

    def tick(self, actions: Actions) -> Actions:
        """The periodic timer among these actions fires."""
        timer = timers(actions, CheckpointTimerPurpose.TRIGGER)[-1]
        self.now += timer.delay
        return self.coordinator.timer(fires(timer), self.now)

    def attempt(self, task: str) -> ExecutionAttemptID:
        vertices = {v.name: v for v in self.topology.vertices}
        return vertices[task[0]].attempt(int(task[1:]))

    def acknowledge(
        self, checkpoint_id: int, *tasks: str, state: TaskState | None = None
    ) -> Actions:
        actions: Actions = []
        for task in tasks:
            answer = AcknowledgeCheckpoint(JOB, checkpoint_id, self.attempt(task), state)
            actions += self.coordinator.acknowledged(answer, self.now)
        return actions

    def decline(
        self, checkpoint_id: int, task: str, reason: Reason = Reason.CHECKPOINT_DECLINED
    ) -> Actions:
        message = DeclineCheckpoint(JOB, checkpoint_id, self.attempt(task), reason, "no room")
        return self.coordinator.declined(message, self.now)

    def store(self, actions: Actions) -> Actions:
        """Answer the StoreCheckpoint among these actions."""
        (wanted,) = only(actions, StoreCheckpoint)
        return self.coordinator.checkpoint_stored(wanted, f"{wanted.directory}/_metadata", self.now)

    def complete(self, checkpoint_id: int, *states: TaskState | None) -> Actions:
        """All tasks acknowledge, with these states, and it is stored."""
        actions: Actions = []
        for number, attempt in enumerate(self.topology.attempts):
            state = states[number] if number < len(states) else None
            answer = AcknowledgeCheckpoint(JOB, checkpoint_id, attempt, state)
            actions += self.coordinator.acknowledged(answer, self.now)
        return self.store(actions)

    def run(self) -> Actions:
        """The job is RUNNING."""
        return self.coordinator.job_status_changed(JobStatus.RUNNING, self.now)

    @property
    def vertices(self) -> list[RestoredVertex]:
        """As they are restored."""
        return [
            vertex(v.name, v.parallelism, inputs="a" if v.inputs else "")
            for v in self.topology.vertices
        ]

    @property
    def all_tasks(self) -> dict[tuple[JobVertexID, int], int]:
        """With the numbers of their attempts."""
        return {
            (v.vertex_id, i): v.attempts[i]
            for v in self.topology.vertices
            for i in range(v.parallelism)
        }


# --- what is looked for ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Order(Generic[Kind]):
    """An order, with the tasks and the operators' coordinators that get it."""

    order: Kind
    attempts: tuple[ExecutionAttemptID, ...]
    coordinators: tuple[str, ...]


def orders(actions: Iterable[object], kind: type[Kind]) -> list[Order[Kind]]:
    """The orders of this kind, one for each checkpoint."""
    found: dict[int, Order[Kind]] = {}
    for action in actions:
        if isinstance(action, OrderCheckpoint | OrderCoordinators):
            given = action.order
            if isinstance(given, kind):
                told = found.setdefault(given.checkpoint_id, Order(given, (), ()))
                if isinstance(action, OrderCheckpoint):
                    told = replace(told, attempts=told.attempts + action.attempts)
                else:
                    told = replace(told, coordinators=told.coordinators + action.operators)
                found[given.checkpoint_id] = told
    return list(found.values())


def order(actions: Iterable[object], kind: type[Kind]) -> Order[Kind]:
    """The only order of this kind."""
    (found,) = orders(actions, kind)
    return found


def timers(actions: Actions, purpose: CheckpointTimerPurpose) -> list[StartTimer]:
    return [timer for timer in only(actions, StartTimer) if fires(timer).purpose is purpose]


def expiry(actions: Actions) -> CheckpointTimerOver:
    (timer,) = timers(actions, CheckpointTimerPurpose.EXPIRY)
    return fires(timer)


def fires(timer: StartTimer) -> CheckpointTimerOver:
    assert isinstance(timer.event, CheckpointTimerOver)
    return timer.event


def discarded(actions: Actions) -> list[str]:
    """Paths of files."""
    return [file.path for action in only(actions, DiscardFiles) for file in action.files]


def directories(actions: Actions) -> list[str]:
    return [action.directory for action in only(actions, DiscardDirectory)]


def answers(actions: Actions) -> dict[int, Reason | str]:
    """Request -> where its snapshot is, or why there is none."""
    found: dict[int, Reason | str] = {}
    for answer in only(actions, SnapshotFinished):
        found[answer.request_id] = answer.error.reason if answer.error else answer.path or ""
    return found


def state(operator: str, *paths: str, shared: Sequence[str] = ()) -> TaskState:
    """*paths*: files of operator state; *shared*: of keyed state, the first of them whole."""
    parts = tuple(KeyedStatePart(file(path), n == 0) for n, path in enumerate(shared))
    keyed = (KeyedStateHandle(0, 127, parts),) if parts else ()
    handles = tuple(OperatorStateHandle(file(path), (named("s", 0),)) for path in paths)
    return TaskState({operator: OperatorSubtaskState(handles, keyed)})


def paths(files: Sequence[FileState]) -> list[str]:
    return [each.path for each in files]
