"""CheckpointCoordinator beside tasks, a storage and a job that do anything in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
    TaskState,
)
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
    SnapshotCoordinators,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.coordinator import CheckpointCoordinator
from flinkray.scheduler.checkpoints.events import CheckpointsFailJob, CheckpointStep, ReadyToRestore
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
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.checkpointed import file, named, vertex
from tests.scheduler.checkpoints.job_with_checkpoints import Topology, fires

KINDS: list[CheckpointProperties | None] = [
    None,
    None,
    savepoint(),
    savepoint(is_forced=False),
    synchronous_savepoint(is_drain=False),
]
REASONS = st.sampled_from(
    [CheckpointFailureReason.CHECKPOINT_DECLINED, CheckpointFailureReason.TASK_FAILURE]
)
CHOICES = st.integers(0, 10**6)


@dataclass
class Task:
    """An attempt: what it knows, and what is on its way to it."""

    attempt: ExecutionAttemptID
    operator: str
    base: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Checkpoint -> the shared files that its state then had."""
    latest: int = 0
    """Of those that it knows to be complete."""
    triggered: list[TriggerCheckpoint] = field(default_factory=list)
    is_alive: bool = True


class CheckpointCoordinatorMachine(RuleBasedStateMachine):
    """The model: tasks that write files, a disk, and a store that is told what is complete."""

    @initialize(
        most=st.sampled_from([1, 2, 3]),
        retained=st.sampled_from([1, 2]),
        has_coordinator=st.booleans(),
        tolerable=st.sampled_from([-1, 0, 2]),
    )
    def submit(self, most: int, retained: int, has_coordinator: bool, tolerable: int) -> None:
        self.now = 0.0
        self.most, self.max_retained = most, retained
        self.topology = Topology(1, 2)
        self.coordinators = ("a",) if has_coordinator else ()
        self.tolerable = tolerable
        self.coordinator = self.new_coordinator()
        self.tasks = [self.new_task(v, i) for v, i in ((0, 0), (1, 0), (1, 1))]
        self.disk: set[str] = set()
        """Files that tasks have written and nobody has deleted."""
        self.deleted: set[str] = set()
        self.once_durable: set[str] = set()
        self.received: dict[int, dict[ExecutionAttemptID, TaskState | None]] = {}
        """Acknowledgements, by checkpoint."""
        self.triggered: dict[int, TriggerCheckpoint] = {}
        self.over: set[int] = set()
        self.durable: dict[int, StoreCheckpoint] = {}
        """What a JobMaster would recover."""
        self.users: set[str] = set()
        """Files of savepoints."""
        self.preparing: list[PrepareCheckpoint] = []
        self.asked: list[SnapshotCoordinators] = []
        self.storing: list[StoreCheckpoint] = []
        self.timers: list[StartTimer] = []
        self.repeatable: list[Callable[[], list[CheckpointStep]]] = []
        """What was told, as it is told again."""
        self.is_repetition = False
        self.left: set[str] = set()
        """Files that only a JobMaster knew of, which has died; or of its savepoints, which it may
        have completed."""
        self.last_of_predecessors = 0
        """Checkpoint id."""
        self.recovered = 0
        """Checkpoints that were taken over, until the next one is complete."""
        self.late: list[AcknowledgeCheckpoint] = []
        """On their way when their task ended."""
        self.ids = 0
        self.last_used = 0
        self.requests: dict[int, bool] = {}
        """Whether it was answered."""
        self.status = JobStatus.RUNNING
        self.is_restarting = self.is_ready = False
        self.files = 0
        self.is_closed = False
        self.do(self.coordinator.job_status_changed(JobStatus.RUNNING, self.now))

    def new_coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            JOB,
            CheckpointConfiguration(
                interval=10.0,
                timeout=100.0,
                min_pause=5.0,
                max_concurrent=self.most,
                max_retained=self.max_retained,
                tolerable_failures=self.tolerable,
            ),
            lambda: self.topology,
            coordinators=self.coordinators,
        )

    def new_task(self, number: int, subtask: int) -> Task:
        each = self.topology.vertices[number]
        return Task(each.attempt(subtask), each.name)

    # --- carrying actions out ---------------------------------------------------------------------

    def do(self, actions: list[CheckpointStep]) -> None:
        aborted: set[int] = set()
        """Tasks and coordinators are told separately."""
        for action in actions:
            match action:
                case PrepareCheckpoint():
                    self.preparing.append(action)
                case SnapshotCoordinators():
                    self.asked.append(action)
                case OrderCheckpoint(order=TriggerCheckpoint() as trigger):
                    self.trigger(trigger)
                case StoreCheckpoint():
                    self.store(action)
                case OrderCheckpoint(attempts=told, order=CheckpointCompleted(checkpoint_id)):
                    assert checkpoint_id in self.durable, "told before it is durable"
                    for task in self.tasks:
                        if task.attempt in told and task.is_alive:
                            self.knows(task, checkpoint_id)
                case (
                    OrderCheckpoint(order=CheckpointAborted(checkpoint_id))
                    | OrderCoordinators(order=CheckpointAborted(checkpoint_id))
                ):
                    assert checkpoint_id not in self.durable
                    assert checkpoint_id in aborted or checkpoint_id not in self.over
                    aborted.add(checkpoint_id)
                    self.over.add(checkpoint_id)
                case DiscardFiles(files=files):
                    for each in files:
                        assert each.path not in self.needed(), f"{each.path} is needed"
                        may_be_again = each.path in self.once_durable or self.is_repetition
                        assert may_be_again or each.path not in self.deleted, "deleted twice"
                        self.deleted.add(each.path)
                        self.disk.discard(each.path)
                case DiscardDirectory(directory=directory):
                    self.delete_directory(directory)
                case DiscardCheckpoint(checkpoint=checkpoint):
                    checkpoint_id = checkpoint.checkpoint_id
                    del self.durable[checkpoint_id]
                    own = {p for p in self.disk if p.startswith(f"chk-{checkpoint_id}/")}
                    self.disk -= own
                case ForgetCheckpoint(checkpoint=checkpoint):
                    del self.durable[checkpoint.checkpoint_id]
                case SnapshotFinished(request_id=request_id):
                    assert not self.requests[request_id], "answered twice"
                    self.requests[request_id] = True
                case CheckpointsFailJob():
                    assert not self.status.is_terminal
                case ReadyToRestore():
                    self.is_ready = True
                case StartTimer():
                    self.timers.append(action)
                case CloseCheckpointStores():
                    assert not self.is_closed
                    assert not self.storing
                    self.is_closed = True

    def trigger(self, order: TriggerCheckpoint) -> None:
        checkpoint_id = order.checkpoint_id
        assert checkpoint_id > self.last_used, "ids rise"
        assert not self.is_restarting
        self.last_used = checkpoint_id
        self.triggered[checkpoint_id] = order
        self.received[checkpoint_id] = {}
        for task in self.tasks:
            if task.is_alive:
                task.triggered.append(order)

    def store(self, action: StoreCheckpoint) -> None:
        checkpoint_id = action.metadata.checkpoint_id
        assert not self.storing, "one at a time"
        assert checkpoint_id not in self.over
        expected = {task.attempt for task in self.tasks}
        assert set(self.received[checkpoint_id]) >= expected, "not all have acknowledged"
        states = self.received[checkpoint_id].values()
        given = {at for state in states if state for at in locations(state)}
        assert given <= files_of(action), "a handle is missing"
        assert files_of(action) <= self.disk
        self.storing.append(action)

    def delete_directory(self, directory: str) -> None:
        checkpoint_id = int(directory.partition("-")[2])
        assert checkpoint_id not in self.durable
        assert checkpoint_id not in self.coordinator.pending_ids
        assert f"{directory}/" not in "".join(self.users)
        for task in self.tasks:
            ids = [t.checkpoint_id for t in task.triggered]
            assert not task.is_alive or checkpoint_id not in ids, "a task may still write to it"
        self.disk = {path for path in self.disk if not path.startswith(f"{directory}/")}

    def needed(self) -> set[str]:
        """Files of what is durable, or may yet be."""
        stored = [*self.durable.values(), *self.storing]
        needed = {path for each in stored for path in files_of(each)}
        for checkpoint_id in self.coordinator.pending_ids:
            for state in self.received.get(checkpoint_id, {}).values():
                if state is not None:
                    needed |= set(locations(state))
        return needed | self.users

    def knows(self, task: Task, checkpoint_id: int) -> None:
        task.latest = max(task.latest, checkpoint_id)

    # --- the job ----------------------------------------------------------------------------------

    @property
    def may_run(self) -> bool:
        return not self.status.is_terminal

    @rule(choices=st.lists(CHOICES, min_size=4, max_size=30))
    def goes_on(self, choices: list[int]) -> None:
        """So many steps on the way to complete checkpoints, in any order; when there is nothing to
        do, another one is requested."""
        for choice in choices:
            steps: list[Callable[[], None]] = []
            if self.preparing:
                steps.append(partial(self.prepare, True))
            if self.asked:
                steps.append(partial(self.coordinator_answers, True))
            if self.ready_tasks():
                steps.append(partial(self.task_acknowledges, choice))
            if self.storing:
                steps.append(partial(self.storage_answers, True))
            if self.is_restarting and self.is_ready and self.may_run:
                steps.append(partial(self.restore, choice % 2 == 0))
            if not steps or choice % 5 == 0:
                steps.append(partial(self.request, KINDS[choice % 7 % len(KINDS)]))
            if self.timers and choice % 10 == 1:
                steps.append(partial(self.time_passes, choice))
            steps[choice % len(steps)]()

    @rule(kind=st.sampled_from(KINDS))
    def request(self, kind: CheckpointProperties | None) -> None:
        number = len(self.requests) + 1
        self.requests[number] = False
        self.do(self.coordinator.request(number, kind, self.now))

    @precondition(lambda self: self.timers)
    @rule(choice=CHOICES)
    def time_passes(self, choice: int) -> None:
        """To a timer, which fires; others may be late."""
        timer = self.timers.pop(choice % len(self.timers))
        self.now += 1.0 + choice % 7
        self.do(self.coordinator.timer(fires(timer), self.now))

    @precondition(lambda self: self.may_run and not self.is_restarting and self.triggered)
    @rule()
    def restart(self) -> None:
        self.is_restarting = True
        for each in self.topology.vertices:
            each.states = [ExecutionState.CANCELING] * each.parallelism
        self.do(self.coordinator.prepare_restore("a task failed", self.now, is_global=True))
        for task in self.tasks:
            task.is_alive = False
            for trigger in task.triggered[:1]:
                self.late.append(self.write(task, trigger))
        ended = [task.attempt for task in self.tasks]
        self.do(self.coordinator.tasks_ended(ended, is_finished=False, now=self.now))

    @precondition(lambda self: self.is_restarting and self.is_ready and self.may_run)
    @rule(is_global=st.booleans())
    def restore(self, is_global: bool) -> None:
        assert not self.storing
        tasks = {
            (v.vertex_id, i): v.attempts[i] + 1
            for v in self.topology.vertices
            for i in range(v.parallelism)
        }
        vertices = [
            vertex(v.name, v.parallelism, inputs="a" if v.inputs else "")
            for v in self.topology.vertices
        ]
        restored = self.coordinator.restore(vertices, tasks, is_global=is_global)
        assert restored.checkpoint_id == max(self.durable, default=None)
        self.is_restarting = self.is_ready = False
        for each in self.topology.vertices:
            each.states = [ExecutionState.RUNNING] * each.parallelism
            each.attempts = [number + 1 for number in each.attempts]
        self.tasks = [self.new_task(v, i) for v, i in ((0, 0), (1, 0), (1, 1))]
        for task in self.tasks:
            subtask = task.attempt.vertex
            given = restored.tasks.get((subtask.job_vertex_id, subtask.subtask_index))
            if restored.checkpoint_id is not None and given is not None:
                task.latest = restored.checkpoint_id
                task.base[task.latest] = shared(given)
                assert set(locations(given)) <= self.disk | self.users, "restored from nothing"
        self.do(self.coordinator.job_status_changed(JobStatus.RUNNING, self.now))

    @precondition(lambda self: self.may_run and not self.is_restarting and self.triggered)
    @rule(is_stored=st.booleans(), repeated=st.lists(CHOICES, max_size=5))
    def job_master_dies(self, is_stored: bool, repeated: list[int]) -> None:
        """The next one takes the tasks over.  *is_stored*: what was being stored is durable, and
        nobody has heard of that.  *repeated*: of the newest messages the replies were lost."""
        for wanted in self.storing:
            if is_stored and wanted.properties.is_savepoint:
                self.users |= files_of(wanted)
            if is_stored and wanted.properties.is_recovered_from:
                self.durable[wanted.metadata.checkpoint_id] = wanted
                self.once_durable |= files_of(wanted)
        latest = max(self.durable, default=0)
        self.recovered = len(self.durable)
        self.left |= self.disk
        self.ids += len(self.preparing)
        self.last_of_predecessors = self.ids
        for forgotten in (self.preparing, self.asked, self.storing, self.timers):
            forgotten.clear()
        self.requests = dict.fromkeys(self.requests, True)
        self.over = set()
        self.coordinator = self.new_coordinator()
        self.coordinator.recovered(
            CompletedCheckpoint(stored.metadata, stored.properties, f"{stored.directory}/_metadata")
            for _, stored in sorted(self.durable.items())
        )
        begun = {number: f"chk-{number}" for number in range(latest + 1, self.ids + 1)}
        running = [task.attempt for task in self.tasks]
        self.do(self.coordinator.take_over(0, begun, running, self.now))
        self.do(self.coordinator.job_status_changed(JobStatus.RUNNING, self.now))
        for choice in repeated:
            if self.repeatable:
                self.a_message_is_repeated(-1 - choice % 5)

    @precondition(lambda self: self.may_run and len(self.triggered) > 5)
    @rule(status=st.sampled_from([JobStatus.FINISHED, JobStatus.FAILED, JobStatus.SUSPENDED]))
    def end(self, status: JobStatus) -> None:
        self.status = status
        for task in self.tasks:
            task.is_alive = False
        self.do(self.coordinator.job_status_changed(status, self.now))

    # --- the trigger ------------------------------------------------------------------------------

    @precondition(lambda self: self.preparing)
    @rule(is_done=st.sampled_from([True, True, True, False]))
    def prepare(self, is_done: bool) -> None:
        wanted = self.preparing.pop(0)
        if is_done:
            self.ids += 1
            directory = f"{'savepoint' if wanted.properties.is_savepoint else 'chk'}-{self.ids}"
            answer = self.coordinator.prepared(wanted.number, self.ids, directory, self.now)
        else:
            answer = self.coordinator.preparation_failed(wanted.number, "no id", self.now)
        self.do(answer)

    @precondition(lambda self: self.asked)
    @rule(is_done=st.sampled_from([True, True, True, False]))
    def coordinator_answers(self, is_done: bool) -> None:
        asked = self.asked.pop(0)
        checkpoint_id = asked.checkpoint_id
        if is_done:
            cut = file(f"{asked.directory}/cut")
            self.disk.add(cut.path)
            self.tell(
                lambda: self.coordinator.coordinator_acknowledged(checkpoint_id, "a", cut, self.now)
            )
        else:
            self.tell(
                lambda: self.coordinator.coordinator_declined(checkpoint_id, "a", "no", self.now)
            )

    # --- tasks ------------------------------------------------------------------------------------

    def ready_tasks(self) -> list[Task]:
        return [task for task in self.tasks if task.is_alive and task.triggered]

    def write(self, task: Task, trigger: TriggerCheckpoint) -> AcknowledgeCheckpoint:
        """Its snapshot: what it refers to of others is of the latest that it knows of."""
        task.triggered.remove(trigger)
        self.knows(task, trigger.latest_completed)
        self.files += 1
        checkpoint_id = trigger.checkpoint_id
        own = f"{trigger.directory}/{self.files}"
        new = f"shared/{self.files}"
        if trigger.properties.is_savepoint:
            new = f"{trigger.directory}/k{self.files}"
        base = () if trigger.is_whole else task.base.get(task.latest, ())
        if self.files % 3 == 0:
            base = ()
        parts = (*base, new)
        self.disk |= {own, new}
        if trigger.properties.is_savepoint and checkpoint_id <= self.last_of_predecessors:
            self.left |= {own, new}
        task.base[checkpoint_id] = parts
        state = TaskState(
            {
                task.operator: OperatorSubtaskState(
                    (OperatorStateHandle(file(own), (named("s", 0),)),),
                    (
                        KeyedStateHandle(
                            0,
                            0,
                            tuple(KeyedStatePart(file(p), n == 0) for n, p in enumerate(parts)),
                        ),
                    ),
                )
            }
        )
        is_savepoint = trigger.properties.is_savepoint
        return AcknowledgeCheckpoint(JOB, checkpoint_id, task.attempt, state, is_savepoint)

    @precondition(lambda self: self.ready_tasks())
    @rule(choice=CHOICES)
    def task_acknowledges(self, choice: int) -> None:
        ready = self.ready_tasks()
        task = ready[choice % len(ready)]
        message = self.write(task, task.triggered[0])
        if message.checkpoint_id in self.coordinator.pending_ids:
            self.received[message.checkpoint_id][task.attempt] = message.state
        self.tell(lambda: self.coordinator.acknowledged(message, self.now))

    @precondition(lambda self: self.ready_tasks())
    @rule(choice=CHOICES, reason=REASONS)
    def task_declines(self, choice: int, reason: CheckpointFailureReason) -> None:
        ready = self.ready_tasks()
        task = ready[choice % len(ready)]
        trigger = task.triggered.pop(0)
        message = DeclineCheckpoint(JOB, trigger.checkpoint_id, task.attempt, reason, "no room")
        self.tell(lambda: self.coordinator.declined(message, self.now))

    @precondition(lambda self: self.repeatable)
    @rule(choice=CHOICES)
    def a_message_is_repeated(self, choice: int) -> None:
        """All messages are told at least once: the reply to the last one may have been lost.  The
        JobMaster may be another one by then."""
        self.is_repetition = True
        self.do(self.repeatable[choice % len(self.repeatable)]())
        self.is_repetition = False

    def tell(self, told: Callable[[], list[CheckpointStep]]) -> None:
        self.repeatable.append(told)
        self.do(told())

    @precondition(lambda self: self.late)
    @rule()
    def an_acknowledgement_is_late(self) -> None:
        """Its task is gone."""
        message = self.late.pop(0)
        self.tell(lambda: self.coordinator.acknowledged(message, self.now))

    # --- the storage ------------------------------------------------------------------------------

    @precondition(lambda self: self.storing)
    @rule(is_done=st.sampled_from([True, True, True, False]))
    def storage_answers(self, is_done: bool) -> None:
        wanted = self.storing.pop(0)
        checkpoint_id = wanted.metadata.checkpoint_id
        if is_done:
            self.over.add(checkpoint_id)
            if wanted.properties.is_savepoint:
                self.users |= files_of(wanted)
            if wanted.properties.is_recovered_from:
                self.durable[checkpoint_id] = wanted
                self.once_durable |= files_of(wanted)
                self.recovered = 0
            path = f"{wanted.directory}/_metadata"
            self.do(self.coordinator.checkpoint_stored(wanted, path, self.now))
        else:
            self.do(self.coordinator.checkpoint_not_stored(wanted, "disk full", self.now))

    # --- always -----------------------------------------------------------------------------------

    @invariant()
    def never_more_pending_than_allowed(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        forced = 0
        for checkpoint_id in self.coordinator.pending_ids:
            trigger = self.triggered.get(checkpoint_id)
            forced += trigger is None or trigger.properties.is_forced
        assert len(self.coordinator.pending_ids) - forced <= self.most

    @invariant()
    def what_is_durable_is_all_there(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        for stored in self.durable.values():
            assert files_of(stored) <= self.disk, "a file of a complete checkpoint is missing"
        assert self.users <= self.disk

    @invariant()
    def the_newest_are_retained(self) -> None:
        if not hasattr(self, "coordinator") or self.status.is_terminal:
            return
        retained = [each.checkpoint_id for each in self.coordinator.retained]
        assert retained == sorted(self.durable)
        assert len(retained) <= max(self.max_retained, self.recovered)

    def teardown(self) -> None:
        """In the end all are answered, and no file is left that nobody needs."""
        if not hasattr(self, "coordinator"):
            return
        while self.storing:
            self.storage_answers(True)
        if self.may_run:
            self.status = JobStatus.FINISHED
            for task in self.tasks:
                task.is_alive = False
            self.do(self.coordinator.job_status_changed(JobStatus.FINISHED, self.now))
        while self.preparing:
            self.prepare(True)
        while self.asked:
            self.coordinator_answers(True)
        while self.late:
            self.an_acknowledgement_is_late()
        assert all(self.requests.values()), "a request was not answered"
        assert self.is_closed
        if self.status is JobStatus.FINISHED:
            assert self.durable.keys() <= {
                i for i, s in self.durable.items() if s.properties.is_savepoint
            }
            assert self.disk - self.left <= self.users, "nobody needs these"


def files_of(stored: StoreCheckpoint) -> set[str]:
    return {at.path for at in state_locations(stored.metadata) if isinstance(at, FileState)}


def locations(state: TaskState) -> list[str]:
    return [
        at.path
        for each in state.operators.values()
        for at in each.locations()
        if isinstance(at, FileState)
    ]


def shared(state: TaskState) -> tuple[str, ...]:
    return tuple(f.path for each in state.operators.values() for f in each.shared_files())


TestCheckpointCoordinator = CheckpointCoordinatorMachine.TestCase
TestCheckpointCoordinator.settings = settings(max_examples=200, stateful_step_count=30)
