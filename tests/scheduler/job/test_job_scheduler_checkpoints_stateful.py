"""JobScheduler with stream jobs that take checkpoints, in a world in which tasks, their answers,
the storage and the coordinator of the sources do anything in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from flinkray.checkpoint.handles import FileState, InlineState, TaskState
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.actions import (
    CloseCheckpointStores,
    DiscardCheckpoint,
    DiscardDirectory,
    DiscardFiles,
    ForgetCheckpoint,
    OrderCheckpoint,
    OrderCoordinators,
    PrepareCheckpoint,
    ResetSubtasks,
    RestoreCoordinators,
    SnapshotCoordinators,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.events import (
    CheckpointEvent,
    CheckpointIsNotStored,
    CheckpointIsStored,
    CheckpointNotPrepared,
    CheckpointPrepared,
    CheckpointTimerOver,
    CoordinatorCheckpointed,
    CoordinatorNotCheckpointed,
    SnapshotRequested,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.operators_with_state import state_locations
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobGraph, RestartStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.scheduler.job.job_scheduler_actions import (
    DeployTasks,
    JobSchedulerAction,
    ReleasePartitions,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import TaskDeployment
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.job_with_checkpoints import state
from tests.scheduler.graphs import execution_graph, stream_vertex
from tests.scheduler.job.checkpointed_job import CheckpointedJob, checkpointed_graph
from tests.scheduler.job.test_job_scheduler_tasks_stateful import TasksMachine

KINDS: list[CheckpointProperties | None] = [
    None,
    None,
    savepoint(),
    synchronous_savepoint(is_drain=False),
]
AFTER_THE_END = (
    CloseCheckpointStores,
    DiscardCheckpoint,
    DiscardDirectory,
    DiscardFiles,
    ReleasePartitions,
    SnapshotFinished,
)
CHOICES = st.integers(0, 10**6)
Place = tuple[str, int]
"""Vertex and subtask."""


@st.composite
def stream_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to three vertices of up to three subtasks, pipelined."""
    number = draw(st.integers(1, 3))
    arguments: dict[str, Any] = {name: draw(st.integers(1, 3)) for name in "abc"[:number]}
    edges = []
    for target in range(1, number):
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=2))):
            arrow = draw(st.sampled_from(["->", "-->"]))
            edges.append(f"{'abc'[source]} {arrow} {'abc'[target]}")
    return {**arguments, "edges": edges}


@dataclass
class Taken:
    """One checkpoint, from its trigger on."""

    is_savepoint: bool
    latest_completed: int
    is_whole: bool
    owing: set[ExecutionAttemptID]
    """Those that may still write for it."""
    received: dict[Place, TaskState | None] = field(default_factory=dict)
    finished: set[Place] = field(default_factory=set)
    """When it began."""


class CheckpointedTasksMachine(TasksMachine):
    """Beside the world of tasks: files, pointers to what is durable, and who knows what."""

    tasks: CheckpointedJob
    most_surplus = 1
    """Checkpoints that may be durable at the end besides those that are retained."""

    @initialize(
        shape=stream_jobs(),
        restarts=st.sampled_from([0, 3, 1000, 1000]),
        restart_all=st.booleans(),
        retained=st.sampled_from([1, 2]),
        most=st.sampled_from([1, 2]),
        tolerable=st.sampled_from([-1, -1, 1]),
    )
    def submit_stream(
        self,
        shape: dict[str, Any],
        restarts: int,
        restart_all: bool,
        retained: int,
        most: int,
        tolerable: int,
    ) -> None:
        self.configuration = CheckpointConfiguration(
            10.0, 1e6, 0.0, most, retained, tolerable_failures=tolerable
        )
        self.begin(shape, FixedDelayRestart(restarts), restart_all)

    def submit(self, *_: object) -> None:
        """In place of that for jobs of all kinds."""

    def begin(self, shape: dict[str, Any], strategy: RestartStrategy, restart_all: bool) -> None:
        edges = shape.pop("edges")
        vertices = [stream_vertex(name, number) for name, number in shape.items()]
        graph = checkpointed_graph(
            *vertices, edges=edges, checkpoints=self.configuration, restart_strategy=strategy
        )
        self.graph = execution_graph(vertices=vertices, edges=edges)
        self.regions = PipelinedRegions(self.graph)
        self.tasks = self.new_job(graph)
        self.tasks.sources_start = False
        self.timers, self.cancelled, self.kept = [], set(), {}
        self.preparing: list[PrepareCheckpoint] = []
        self.asked: list[SnapshotCoordinators] = []
        self.checkpoint_timers: list[CheckpointTimerOver] = []
        self.storing: list[StoreCheckpoint] = []
        self.late: list[AcknowledgeCheckpoint] = []
        self.taken: dict[int, Taken] = {}
        self.durable: dict[int, StoreCheckpoint] = {}
        """What a JobMaster would recover, and the job goes on from."""
        self.users: set[str] = set()
        """Files of savepoints."""
        self.disk: set[str] = set()
        self.once_durable: set[str] = set()
        self.base: dict[ExecutionAttemptID, dict[int, tuple[str, ...]]] = {}
        """Checkpoint -> the shared files that a task's state then had."""
        self.files = 0
        self.ids = 0
        self.restores = 0
        self.starting: list[CoordinatorID] = []
        self.stopping: list[CoordinatorID] = []
        self.there: CoordinatorID | None = None
        self.unanswered: set[int] = set()
        self.closed = 0
        self.act(t.StartJob())

    def new_job(self, graph: JobGraph) -> CheckpointedJob:
        return CheckpointedJob(graph, slots_each=2)

    def act(self, event: str | JobEvent, *args: object) -> None:
        if event == "report" and args[1] is ExecutionState.FINISHED:
            finishing = [a for a in args[0] if self.may_finish(a)]  # type: ignore[attr-defined]
            if not finishing:
                return
            args = (finishing, *args[1:])
        before = set(self.tasks.tasks)
        super().act(event, *args)
        gone = before - set(self.tasks.tasks)
        for taken in self.taken.values():
            taken.owing -= gone

    def may_finish(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether nothing comes any more of what it reads."""
        vertex = self.graph.vertex(attempt_id.vertex.job_vertex_id)
        assert vertex is not None
        current = self.current()
        return all(
            current[edge.result.producer.vertex.name, producer][0] is ExecutionState.FINISHED
            for edge in vertex.inputs
            for producer in edge.group_of_consumer(attempt_id.vertex.subtask_index).partitions
        )

    def is_work(self, action: JobSchedulerAction) -> bool:
        return not isinstance(action, AFTER_THE_END)

    def place(self, attempt_id: ExecutionAttemptID) -> Place:
        name = self.tasks.name(attempt_id)
        return name[:-1], int(name[-1]) - 1

    # --- what the job wants -----------------------------------------------------------------------

    def carry_out(self, action: JobSchedulerAction) -> None:
        match action:
            case PrepareCheckpoint():
                self.preparing.append(action)
            case SnapshotCoordinators():
                self.asked.append(action)
            case StartTimer(CheckpointTimerOver() as key):
                self.checkpoint_timers.append(key)
            case StoreCheckpoint():
                self.store(action)
            case OrderCheckpoint():
                self.order_checkpoint(action)
            case OrderCoordinators(order=CheckpointCompleted(checkpoint_id)):
                assert checkpoint_id in self.durable
            case RestoreCoordinators():
                self.restore_coordinators(action)
            case ResetSubtasks(checkpoint_id, subtasks):
                assert checkpoint_id == max(self.durable, default=0)
                current = self.current()
                for operator, reset in subtasks.items():
                    for subtask, number in reset:
                        assert current[operator, subtask][1] == number
            case DiscardFiles(files):
                for file in files:
                    assert file.path not in self.needed(), f"{file.path} is needed"
                    self.disk.discard(file.path)
            case DiscardDirectory(directory):
                self.delete_directory(directory)
            case DiscardCheckpoint(checkpoint):
                checkpoint_id = checkpoint.checkpoint_id
                del self.durable[checkpoint_id]
                own = f"/chk-{checkpoint_id}/"
                self.disk = {path for path in self.disk if not path.startswith(own)}
            case ForgetCheckpoint(checkpoint):
                del self.durable[checkpoint.checkpoint_id]
            case SnapshotFinished(request_id):
                self.unanswered.remove(request_id)
            case CloseCheckpointStores():
                assert not self.storing
                assert self.tasks.status.is_terminal
                self.closed += 1
            case StartCoordinator(coordinator):
                assert self.there is None
                self.there = coordinator
                self.starting.append(coordinator)
            case StopCoordinator(coordinator):
                self.stopping.append(coordinator)

    def order_checkpoint(self, action: OrderCheckpoint) -> None:
        order = action.order
        current = self.current()
        for attempt_id in action.attempts:
            told_state, number = current[self.place(attempt_id)]
            assert number == attempt_id.attempt_number, "an attempt that is not current is told"
            assert not told_state.is_terminal
            assert self.tasks.where[attempt_id] == action.location.resource_id
        match order:
            case TriggerCheckpoint():
                states = {one for one, _ in current.values()}
                assert states <= {ExecutionState.RUNNING, ExecutionState.FINISHED}
                self.taken.setdefault(order.checkpoint_id, self.trigger(order))
            case CheckpointCompleted(checkpoint_id):
                assert checkpoint_id in self.durable, "told before it is durable"
            case CheckpointAborted(checkpoint_id, latest_completed):
                assert checkpoint_id not in self.durable
                assert latest_completed == max(self.durable, default=0)

    def trigger(self, order: TriggerCheckpoint) -> Taken:
        assert order.latest_completed == max(self.durable, default=0)
        current = self.current()
        finished = {p for p, (one, _) in current.items() if one is ExecutionState.FINISHED}
        running = {a for a in self.tasks.tasks if self.is_current(a)}
        is_savepoint = order.properties.is_savepoint
        taken = Taken(is_savepoint, order.latest_completed, order.is_whole, running)
        taken.finished = finished
        return taken

    def is_current(self, attempt_id: ExecutionAttemptID) -> bool:
        one, number = self.current()[self.place(attempt_id)]
        return number == attempt_id.attempt_number and not one.is_terminal

    def store(self, action: StoreCheckpoint) -> None:
        checkpoint_id = action.metadata.checkpoint_id
        assert not self.storing, "one at a time"
        taken = self.taken[checkpoint_id]
        assert not taken.owing
        given = {p for one in taken.received.values() if one is not None for p in paths(one)}
        assert given <= files_of(action), "a handle is missing"
        assert files_of(action) <= self.disk
        self.storing.append(action)

    def delete_directory(self, directory: str) -> None:
        checkpoint_id = int(directory.removeprefix("/chk-"))
        assert checkpoint_id not in self.durable
        assert f"{directory}/" not in " ".join(self.users)
        taken = self.taken.get(checkpoint_id)
        if taken is not None:
            assert not any(self.is_current(a) for a in taken.owing), "a task may still write there"
        self.disk = {path for path in self.disk if not path.startswith(f"{directory}/")}

    def needed(self) -> set[str]:
        """Files of what is durable, or may yet be."""
        needed = {p for one in (*self.durable.values(), *self.storing) for p in files_of(one)}
        for checkpoint_id in self.tasks.scheduler._checkpoints._coordinator.pending_ids:  # type: ignore[attr-defined]
            if checkpoint_id in self.taken:
                for received in self.taken[checkpoint_id].received.values():
                    if received is not None:
                        needed |= set(paths(received))
        return needed | self.users

    def restore_coordinators(self, action: RestoreCoordinators) -> None:
        assert not self.storing, "it is not known yet which checkpoint is the latest"
        assert action.checkpoint_id == max(self.durable, default=None)
        self.restores += 1
        assert action.restores == self.restores
        told = {state for state, _ in self.current().values() if not state.is_terminal}
        early = {ExecutionState.CREATED, ExecutionState.SCHEDULED}
        assert told <= early, "all tasks go back with the coordinators"
        if action.checkpoint_id is not None:
            metadata = self.durable[action.checkpoint_id].metadata
            known = {o.operator_id: o.coordinator for o in metadata.operators}
            assert all(known[operator] == cut for operator, cut in action.states.items())

    def check_deployment(self, action: DeployTasks) -> None:
        super().check_deployment(action)
        side = self.tasks.task_executors[action.location.resource_id]
        for task in action.deployments.tasks:
            name = side.parts[task.vertex].content.name  # type: ignore[union-attr]
            self.check_restored((name, task.subtask_index), task)

    def check_restored(self, place: Place, task: TaskDeployment) -> None:
        """It begins with the state of the latest checkpoint that is complete."""
        assert not self.storing or not task.attempt_number
        assert task.restores == self.restores
        attempt_id = self.attempt(*place, task.attempt_number)
        latest = max(self.durable, default=None)
        if self.begins_anew(task):
            assert task.restored is None
            return
        if latest is None:
            assert task.restored is None
            return
        assert task.restored is not None
        assert task.restored.checkpoint_id == latest
        taken = self.taken[latest]
        of_vertex = {p for p in self.current() if p[0] == place[0]}
        if of_vertex <= taken.finished:
            assert task.restored.state == TaskState({}, is_finished=True)
            return
        assert task.restored.state == taken.received.get(place)
        if task.restored.state is not None:
            assert set(paths(task.restored.state)) <= self.disk, "restored from nothing"
            self.base[attempt_id] = {latest: shared(task.restored.state)}

    def begins_anew(self, task: TaskDeployment) -> bool:
        return task.attempt_number == 0

    # --- what becomes of it -----------------------------------------------------------------------

    @rule(choices=st.lists(CHOICES, min_size=4, max_size=30))
    def checkpoints_go_on(self, choices: list[int]) -> None:
        """So many steps on the way to complete ones, in any order, with restarts in between."""
        for choice in choices:
            steps = self.steps(choice)
            if not steps or choice % 5 == 0:
                steps.append(partial(self.request, KINDS[choice % 7 % len(KINDS)]))
            if choice % 13 == 1 and self.runs():
                running = self.runs()
                chosen = [running[choice % len(running)]]
                steps = [partial(self.act, "report", chosen, ExecutionState.FAILED, "broken")]
            steps[choice % len(steps)]()

    def steps(self, choice: int) -> list[Callable[[], None]]:
        """What can be done that leads on."""
        steps: list[Callable[[], None]] = []
        if self.tasks.wanted:
            steps.append(partial(self.act, "give", None))
        early = self.deployed_only()
        if early:
            steps.append(partial(self.act, "report", early, ExecutionState.RUNNING))
        ending = [a for a in sorted(self.tasks.tasks, key=str) if a in self.cancelled]
        if ending:
            steps.append(partial(self.act, "report", ending, ExecutionState.CANCELED))
        if self.timers and self.tasks.status is JobStatus.RESTARTING:
            steps.append(partial(self.act, self.timers[choice % len(self.timers)]))
        if self.preparing:
            steps.append(partial(self.prepare, succeeds=True))
        if self.asked:
            steps.append(partial(self.coordinators_answer, succeeds=True))
        if self.owing():
            steps.append(partial(self.task_answers, choice, acknowledges=True, ends=False))
        if self.storing:
            steps.append(partial(self.storage_answers, succeeds=True))
        if self.starting:
            steps.append(partial(self.coordinator_starts, 1))
        if self.stopping:
            steps.append(self.coordinator_has_stopped)
        return steps

    def deployed_only(self) -> list[ExecutionAttemptID]:
        """Tasks that were sent out and have not said that they run."""
        current = self.current()
        early = (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING)
        return [a for a in self.runs() if current[self.place(a)][0] in early]

    @rule(kind=st.sampled_from(KINDS))
    def request(self, kind: CheckpointProperties | None) -> None:
        self.tasks.requests += 1
        self.unanswered.add(self.tasks.requests)
        self.act(SnapshotRequested(self.tasks.requests, kind))

    @precondition(lambda self: self.checkpoint_timers)
    @rule(choice=CHOICES, rare=st.integers(0, 3))
    def checkpoint_timer_fires(self, choice: int, rare: int) -> None:
        """Also that of an expiry, which is far in the future."""
        key = self.checkpoint_timers[choice % len(self.checkpoint_timers)]
        if rare == 0:
            self.act(key)

    @precondition(lambda self: self.preparing)
    @rule(succeeds=st.booleans())
    def prepare(self, *, succeeds: bool) -> None:
        number = self.preparing.pop(0).number
        if not succeeds:
            self.act(CheckpointNotPrepared(number, "no room"))
            return
        self.ids += 1
        event = CheckpointPrepared(number, self.ids, f"/chk-{self.ids}")
        self.act(event)

    @precondition(lambda self: self.asked)
    @rule(succeeds=st.booleans())
    def coordinators_answer(self, *, succeeds: bool) -> None:
        asked = self.asked.pop(0)
        for operator in asked.operators:
            event: CheckpointEvent
            if succeeds:
                cut = InlineState(f"{operator} {asked.checkpoint_id}".encode())
                event = CoordinatorCheckpointed(asked.checkpoint_id, operator, cut)
            else:
                event = CoordinatorNotCheckpointed(asked.checkpoint_id, operator, "it is lost")
            self.act(event)

    def owing(self) -> list[tuple[int, ExecutionAttemptID]]:
        """What tasks that run have yet to answer."""
        return [
            (checkpoint_id, attempt_id)
            for checkpoint_id, taken in self.taken.items()
            for attempt_id in sorted(taken.owing, key=str)
            if attempt_id in self.tasks.tasks
        ]

    @precondition(lambda self: self.owing())
    @rule(choice=CHOICES, acknowledges=st.booleans(), ends=st.booleans())
    def task_answers(self, choice: int, *, acknowledges: bool, ends: bool) -> None:
        """*ends*: in the same message it says that it has finished."""
        owing = self.owing()
        checkpoint_id, attempt_id = owing[choice % len(owing)]
        taken = self.taken[checkpoint_id]
        taken.owing.discard(attempt_id)
        answer: AcknowledgeCheckpoint | DeclineCheckpoint
        if acknowledges:
            answer = self.written(checkpoint_id, attempt_id, choice)
            if self.is_current(attempt_id):
                taken.received[self.place(attempt_id)] = answer.state
            if choice % 3 == 0:
                self.late.append(answer)
        else:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
            answer = DeclineCheckpoint(JOB, checkpoint_id, attempt_id, reason)
        self.act(t.TasksReported((answer,)))
        if ends and attempt_id in self.tasks.tasks:
            self.act("report", [attempt_id], ExecutionState.FINISHED)

    def written(
        self, checkpoint_id: int, attempt_id: ExecutionAttemptID, choice: int
    ) -> AcknowledgeCheckpoint:
        """It refers to files of the latest complete checkpoint that the barrier has told of."""
        taken = self.taken[checkpoint_id]
        self.files += 1
        own, changed = f"/chk-{checkpoint_id}/{self.files}", f"/shared/{self.files}"
        known = self.base.setdefault(attempt_id, {})
        before = () if taken.is_whole else known.get(taken.latest_completed, ())
        if taken.is_savepoint:
            changed = f"/chk-{checkpoint_id}/{self.files}-keyed"
        written = state(self.place(attempt_id)[0], own, shared=(*before, changed))
        self.disk |= {own, changed}
        if not taken.is_savepoint:
            known[checkpoint_id] = (*before, changed)
        return AcknowledgeCheckpoint(JOB, checkpoint_id, attempt_id, written, taken.is_savepoint)

    @precondition(lambda self: self.late)
    @rule(choice=CHOICES)
    def answer_comes_again(self, choice: int) -> None:
        """Repeated by a connection, or of a task that is gone."""
        answer = self.late.pop(choice % len(self.late))
        if self.taken[answer.checkpoint_id].is_savepoint or answer.state is None:
            return
        self.act(t.TasksReported((answer,)))

    @precondition(lambda self: self.storing)
    @rule(succeeds=st.booleans())
    def storage_answers(self, *, succeeds: bool) -> None:
        stored = self.storing.pop()
        checkpoint_id = stored.metadata.checkpoint_id
        if not succeeds:
            self.act(CheckpointIsNotStored(stored, "disk full"))
            return
        if stored.properties.is_savepoint:
            self.users |= files_of(stored)
        if stored.properties.is_recovered_from:
            self.durable[checkpoint_id] = stored
        event = CheckpointIsStored(stored, f"{stored.directory}/_metadata")
        self.act(event)

    # --- the coordinator of the sources -----------------------------------------------------------

    @precondition(lambda self: self.starting)
    @rule(succeeds=st.integers(0, 5))
    def coordinator_starts(self, succeeds: int) -> None:
        coordinator = self.starting.pop()
        if succeeds:
            self.act(t.CoordinatorStarted(coordinator))
        elif coordinator == self.there:
            self.coordinator_dies(0)

    @precondition(lambda self: self.stopping)
    @rule()
    def coordinator_has_stopped(self) -> None:
        coordinator = self.stopping.pop()
        if coordinator == self.there:
            self.there = None
            self.act(t.CoordinatorGone(coordinator))

    @precondition(lambda self: self.there is not None)
    @rule(rare=st.integers(0, 10))
    def coordinator_dies(self, rare: int) -> None:
        if rare == 0 and self.there is not None:
            gone, self.there = self.there, None
            self.act(t.CoordinatorGone(gone, "killed"))

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def what_is_durable_is_whole(self) -> None:
        if hasattr(self, "graph"):
            for stored in self.durable.values():
                assert files_of(stored) <= self.disk

    @invariant()
    def tasks_belong_to_the_last_restore(self) -> None:
        """A source's reader of another one would never be given anything."""
        if hasattr(self, "graph"):
            for attempt_id, task in self.tasks.tasks.items():
                if self.is_current(attempt_id) and attempt_id not in self.cancelled:
                    assert task.restores == self.restores

    def sources_are_awaited(self) -> bool:
        return bool(self.starting)

    def go_on(self) -> None:
        while self.preparing:
            self.prepare(succeeds=True)
        while self.asked:
            self.coordinators_answer(succeeds=True)
        while self.storing:
            self.storage_answers(succeeds=True)
        while self.starting:
            self.coordinator_starts(1)
        while self.stopping:
            self.coordinator_has_stopped()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "graph"):
            self.go_on()
            assert self.closed == 1
            assert not self.unanswered
            assert len(self.durable) <= self.configuration.max_retained + self.most_surplus


def paths(state: TaskState) -> list[str]:
    return [
        location.path
        for operator in state.operators.values()
        for location in operator.locations()
        if isinstance(location, FileState)
    ]


def shared(state: TaskState) -> tuple[str, ...]:
    return tuple(f.path for o in state.operators.values() for f in o.shared_files())


def files_of(action: StoreCheckpoint) -> set[str]:
    return {at.path for at in state_locations(action.metadata) if isinstance(at, FileState)}


TestCheckpointedTasks = CheckpointedTasksMachine.TestCase
TestCheckpointedTasks.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
