"""A JobScheduler of a job that takes checkpoints, with short names for what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from flinkray.checkpoint.handles import InlineState, TaskState
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.actions import (
    OrderCheckpoint,
    PrepareCheckpoint,
    SnapshotCoordinators,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.events import (
    CheckpointEvent,
    CheckpointIsStored,
    CheckpointPrepared,
    CheckpointTimerOver,
    CheckpointTimerPurpose,
    CoordinatorCheckpointed,
    SnapshotRequested,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointOrder,
    DeclineCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph, JobVertex, RestartStrategy, SchedulerMode
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import JOB, only
from tests.scheduler.checkpoints.job_with_checkpoints import state
from tests.scheduler.graphs import job, stream_vertex
from tests.scheduler.tasks_under_test import RESTARTS, TasksUnderTest

Actions = list[JobSchedulerAction]

EVERY_MINUTE = CheckpointConfiguration(interval=60.0, tolerable_failures=-1)


def checkpointed_graph(
    *vertices: JobVertex,
    edges: Iterable[str] = ("a -> b",),
    checkpoints: CheckpointConfiguration = EVERY_MINUTE,
    restart_strategy: RestartStrategy = RESTARTS,
    mode: SchedulerMode = SchedulerMode.DEFAULT,
) -> JobGraph:
    """Sources ``a``, of which ``b`` reads all, unless other vertices are given."""
    vertices = vertices or (stream_vertex("a", 2), stream_vertex("b", 2))
    graph = job(vertices=vertices, edges=edges, restart_strategy=restart_strategy)
    return replace(graph, checkpoints=checkpoints, scheduler_mode=mode)


class CheckpointedJob(TasksUnderTest):
    """Tasks are ``a1``, ``a2``, ``b1``, ``b2``; an operator's id is its name, and ``a`` has a
    coordinator.  The directory of checkpoint 7 is ``/chk-7``."""

    def __init__(
        self,
        graph: JobGraph | None = None,
        *,
        kind: Callable[..., JobScheduler] = JobScheduler,
        slots_each: int = 1,
    ) -> None:
        super().__init__(graph or checkpointed_graph(), kind=kind, slots_each=slots_each)
        self.last_id = 0
        self.requests = 0

    def told(self, event: CheckpointEvent) -> Actions:
        return self.tell(event)

    # --- one checkpoint, step by step -------------------------------------------------------------

    def tick(self) -> Actions:
        """The periodic timer that was started last fires."""
        timers = only(self.log, StartTimer)
        periodic = [
            timer
            for timer in timers
            if isinstance(timer.event, CheckpointTimerOver)
            and timer.event.purpose is CheckpointTimerPurpose.TRIGGER
        ]
        return self.tell(periodic[-1].event)

    def request(self, properties: CheckpointProperties | None = None) -> Actions:
        """A user does; requests are numbered from 1."""
        self.requests += 1
        return self.told(SnapshotRequested(self.requests, properties))

    def prepare(self, actions: Actions) -> Actions:
        """The PrepareCheckpoint among these is carried out."""
        (wanted,) = only(actions, PrepareCheckpoint)
        self.last_id += 1
        return self.told(CheckpointPrepared(wanted.number, self.last_id, f"/chk-{self.last_id}"))

    def cut(self, actions: Actions) -> Actions:
        """The coordinators among these make their cuts."""
        (wanted,) = only(actions, SnapshotCoordinators)
        actions = []
        for operator_id in wanted.operators:
            cut = InlineState(f"{operator_id} at {wanted.checkpoint_id}".encode())
            event = CoordinatorCheckpointed(wanted.checkpoint_id, operator_id, cut)
            actions += self.told(event)
        return actions

    def trigger(self, properties: CheckpointProperties | None = None) -> Actions:
        """A user's request, up to the trigger of tasks: the last actions."""
        return self.cut(self.prepare(self.request(properties)))

    def acknowledgements(self, checkpoint_id: int, names: str = "") -> list[AcknowledgeCheckpoint]:
        """Of these tasks, or of all that run, with state that says whose it is."""
        attempts = [self.attempt(name) for name in names.split()] if names else list(self.tasks)
        return [
            AcknowledgeCheckpoint(JOB, checkpoint_id, a, self.state_of(checkpoint_id, a))
            for a in attempts
        ]

    def state_of(self, checkpoint_id: int, attempt_id: ExecutionAttemptID) -> TaskState:
        name = self.name(attempt_id)
        return state(name[0], f"/chk-{checkpoint_id}/{name}")

    def acknowledge(self, checkpoint_id: int, names: str = "") -> Actions:
        return self.tell(t.TasksReported(tuple(self.acknowledgements(checkpoint_id, names))))

    def decline(
        self,
        checkpoint_id: int,
        name: str,
        reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED,
    ) -> Actions:
        declined = DeclineCheckpoint(JOB, checkpoint_id, self.attempt(name), reason)
        return self.tell(t.TasksReported((declined,)))

    def store(self) -> Actions:
        """What was to be stored last is."""
        stored = only(self.log, StoreCheckpoint)[-1]
        return self.told(CheckpointIsStored(stored, f"{stored.directory}/_metadata"))

    def take(self, properties: CheckpointProperties | None = None) -> Actions:
        """A whole checkpoint, to its end: the last actions."""
        self.trigger(properties)
        self.acknowledge(self.last_id)
        return self.store()

    # --- what is to be seen -----------------------------------------------------------------------

    def orders(self, actions: Iterable[object]) -> list[tuple[CheckpointOrder, str]]:
        """Each with the tasks that it goes to, by TaskExecutor."""
        return [
            (
                action.order,
                " ".join(f"{self.name(a)}#{a.attempt_number}" for a in action.attempts)
                + f" on {action.location.resource_id}",
            )
            for action in only(actions, OrderCheckpoint)
        ]

    def restored(self) -> dict[str, str]:
        """Task -> the file that its attempt, which was deployed last, begins with."""
        found: dict[str, str] = {}
        for attempt_id, task in self.tasks.items():
            begins = "anew"
            if task.restored is not None:
                begins = f"{task.restored.checkpoint_id}:"
                if task.restored.state is not None:
                    files = [
                        handle.location.path  # type: ignore[union-attr]
                        for operator in task.restored.state.operators.values()
                        for handle in operator.operator_state
                    ]
                    begins += " finished" if task.restored.state.is_finished else ",".join(files)
            found[self.name(attempt_id)] = begins
        return found

    def restored_from_another_job(self) -> set[bool]:
        """Whether the tasks are told that what they begin with is not the job's own."""
        return {task.restored.is_foreign for task in self.tasks.values() if task.restored}
