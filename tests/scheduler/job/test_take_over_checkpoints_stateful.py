"""JobSchedulers that follow each other while checkpoints are taken: what one has begun, and what
tasks answer to it, comes to the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from flinkray.core.ids import ExecutionAttemptID, JobMasterId
from flinkray.scheduler.checkpoints.actions import (
    OrderCheckpoint,
    PrepareCheckpoint,
    RestoreCoordinators,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, CheckpointCompleted
from flinkray.scheduler.graph.job_graph import JobGraph, RestartStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import JobNotes, SourceCoordinatorPlace
from flinkray.scheduler.shared.tasks import TaskDeployment
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import id_of, only
from tests.scheduler.job.checkpointed_job import CheckpointedJob, checkpointed_graph
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.job.test_job_scheduler_checkpoints_stateful import (
    CHOICES,
    CheckpointedTasksMachine,
    Place,
    files_of,
)
from tests.scheduler.tasks_under_test import EARLY

OWNER = id_of(JobMasterId, 1)


class TakenOverCheckpointedJob(TakenOverJob, CheckpointedJob):
    """With what is stored, and with the coordinator of its sources."""

    def __init__(
        self,
        graph: JobGraph,
        *,
        slots_each: int = 1,
        kind: Callable[..., JobScheduler] = JobScheduler,
    ) -> None:
        self.stored: Callable[[], list[CompletedCheckpoint]] = list
        self.place: Callable[[], SourceCoordinatorPlace | None] = lambda: None
        super().__init__(graph, slots_each=slots_each, kind=kind)

    def recover(self) -> None:
        self.scheduler.checkpoints_recovered(self.stored())

    def reached(self, notes: JobNotes | None) -> JobNotes | None:
        return None if notes is None else replace(notes, source_coordinator=self.place())


def test_task_whose_failure_was_not_reported_before_a_take_over_gets_no_checkpoint() -> None:
    """The attempt is one of the deployed ones, and the next JobMaster hears of its end last."""
    tasks = TakenOverCheckpointedJob(checkpointed_graph())
    tasks.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    tasks.run()
    tasks.trigger()
    ended = tasks.attempt("a1")
    tasks.happens([ended], ExecutionState.FAILED, "unheard")
    tasks.next_job_master()
    actions = tasks.take_over(begun_checkpoints={1: "/chk-1"})
    told = {attempt for order in only(actions, OrderCheckpoint) for attempt in order.attempts}
    assert told == set(tasks.tasks) - {ended}


def test_job_takes_a_checkpoint_at_once_after_a_take_over() -> None:
    """Its sinks have committed nothing while no JobMaster led."""
    tasks = TakenOverCheckpointedJob(checkpointed_graph())
    tasks.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    tasks.run()
    tasks.next_job_master()
    timers = only(tasks.take_over(), StartTimer)
    assert [timer.delay for timer in timers][1:] == [0.0]
    assert only(tasks.tell(timers[-1].event), PrepareCheckpoint)


class TakeOverCheckpointsMachine(CheckpointedTasksMachine):
    """The JobMaster dies while checkpoints are under way."""

    tasks: TakenOverCheckpointedJob

    def begin(self, shape: dict[str, Any], strategy: RestartStrategy, restart_all: bool) -> None:
        self.begun: dict[int, str] = {}
        super().begin(shape, strategy, restart_all)

    def new_job(self, graph: JobGraph) -> CheckpointedJob:
        job = TakenOverCheckpointedJob(graph, slots_each=2)
        job.stored = self.completed
        job.place = self.place_of_coordinator
        return job

    def completed(self) -> list[CompletedCheckpoint]:
        return [
            CompletedCheckpoint(stored.metadata, stored.properties, f"{stored.directory}/_metadata")
            for stored in self.durable.values()
        ]

    def place_of_coordinator(self) -> SourceCoordinatorPlace | None:
        """If the notes say where it is, and it is there."""
        notes = self.tasks.notes
        place = None if notes is None else notes.source_coordinator
        if place is None or self.there is None or place.attempt_number != self.there.attempt_number:
            return None
        assert notes is not None
        has_readers = any(
            deployment.restores == self.restores
            for attempt_id, deployment in self.tasks.deployments.items()
            if attempt_id.graph_id == notes.graph_id
        )
        return replace(place, restores=self.restores, has_readers=has_readers)

    def attempt(self, name: str, subtask: int, number: int) -> ExecutionAttemptID:
        assert self.tasks.notes is not None
        (found,) = [
            a
            for a in self.tasks.where
            if self.tasks.name(a) == f"{name}{subtask + 1}"
            and a.attempt_number == number
            and a.graph_id == self.tasks.notes.graph_id
        ]
        return found

    def begins_anew(self, task: TaskDeployment) -> bool:
        return task.attempt_number == 0 and not self.durable

    def check_deployment(self, action: DeployTasks) -> None:
        if self.tasks.carried_out is None:
            super().check_deployment(action)

    @precondition(lambda self: self.starting)
    @rule(succeeds=st.integers(0, 5))
    def coordinator_starts(self, succeeds: int) -> None:
        coordinator = self.starting[-1]
        if succeeds and coordinator == self.there:
            place = SourceCoordinatorPlace(coordinator.attempt_number, OWNER, "sources")
            self.act(t.SourceCoordinatorIsAt(place))
        super().coordinator_starts(succeeds)

    # --- the JobMaster ----------------------------------------------------------------------------

    @precondition(lambda self: self.tasks.ended is None)
    @rule(data=st.data(), number=st.integers(0, 4), choice=CHOICES)
    def job_master_dies(self, data: st.DataObject, number: int, choice: int) -> None:
        """*number*: in the middle of what it says, if not 0."""
        if number:
            self.tasks.carried_out = number - 1
            steps = self.steps(choice)
            if steps:
                steps[choice % len(steps)]()
            if self.tasks.ended is not None:
                return
        unheard = data.draw(st.integers(0, 2)) == 0 and self.happen_unheard(data)
        lost = data.draw(st.integers(0, 5)) == 0 and self.lose_some(data)
        before = None if number or unheard or lost else self.what_should_go_on()
        self.forget_what_was_asked(data)
        self.tasks.is_copy = data.draw(st.booleans())
        self.take_over(before)

    def happen_unheard(self, data: st.DataObject) -> bool:
        """Of tasks that run, some finish or fail, and have their answers lost."""
        ends = [ExecutionState.FINISHED, ExecutionState.FAILED, ExecutionState.CANCELED]
        state = data.draw(st.sampled_from(ends))
        runs = [a for a in self.runs() if state is not ends[0] or self.may_finish(a)]
        if not runs:
            return False
        self.end([data.draw(st.sampled_from(runs))], state)
        return True

    def end(self, attempts: list[ExecutionAttemptID], state: ExecutionState) -> None:
        self.tasks.happens(attempts, state, "unheard")
        for taken in self.taken.values():
            taken.owing -= set(attempts)

    def lose_some(self, data: st.DataObject) -> bool:
        there = sorted(self.tasks.locations)
        if there:
            name = data.draw(st.sampled_from(there))
            gone = {a for a in self.tasks.tasks if self.tasks.where[a] == name}
            self.tasks.task_executor_dies(name)
            for taken in self.taken.values():
                taken.owing -= gone
        return bool(there)

    def what_should_go_on(self) -> dict[Place, tuple[ExecutionState, int]] | None:
        """All of it, if nothing of it has failed; None: something has."""
        current = self.current()
        place = self.place_of_coordinator()
        if self.tasks.status is not JobStatus.RUNNING or self.tasks.notes is None:
            return None
        if place is None or place.restores != self.tasks.notes.restores or self.stopping:
            return None
        early = (ExecutionState.CREATED, ExecutionState.SCHEDULED)
        deployed = {s: e for s, e in current.items() if e[0] not in early}
        for (name, subtask), (state, number) in deployed.items():
            attempt_id = self.attempt(name, subtask, number)
            runs = state in EARLY and self.tasks.task_states.get(attempt_id) is state
            if not runs and state is not ExecutionState.FINISHED:
                return None
        return deployed

    def forget_what_was_asked(self, data: st.DataObject) -> None:
        """Or do it, and tell nobody."""
        for _ in self.preparing:
            self.ids += data.draw(st.booleans())
        for stored in self.storing:
            if data.draw(st.booleans()):
                if stored.properties.is_savepoint:
                    self.users |= files_of(stored)
                if stored.properties.is_recovered_from:
                    self.durable[stored.metadata.checkpoint_id] = stored
        if self.place_of_coordinator() is None or self.stopping:
            self.there = None
        for asked in (self.preparing, self.storing, self.asked, self.checkpoint_timers):
            asked.clear()
        for each in (self.starting, self.stopping, self.unanswered):
            each.clear()
        self.most_surplus += 1

    def is_savepoint(self, checkpoint_id: int) -> bool:
        taken = self.taken.get(checkpoint_id)
        return taken is not None and taken.is_savepoint

    def delete_directory(self, directory: str) -> None:
        checkpoint_id = int(directory.removeprefix("/chk-"))
        if checkpoint_id in self.begun and self.is_savepoint(checkpoint_id):
            return  # which is elsewhere: there is nothing
        super().delete_directory(directory)

    def take_over(self, before: dict[Place, tuple[ExecutionState, int]] | None) -> None:
        self.tasks.next_job_master()
        self.timers, self.cancelled = [], set()
        latest = max(self.durable, default=0)
        self.begun = begun = {
            number: f"/chk-{number}" for number in range(latest + 1, self.ids + 1)
        }
        actions = self.tasks.take_over(begun_checkpoints=begun)
        if "taken over from" in self.tasks.scheduler.story():
            is_committed = latest > 0 and not self.durable[latest].properties.is_savepoint
            self.look_at(actions)
            self.check_told(actions, {*begun, *([latest] * is_committed)})
        else:
            self.restores = 0
            there = list(self.tasks.tasks)
            assert set(there) <= set(cancelled_by(actions))
            self.end(there, ExecutionState.CANCELED)
            self.look_at(actions)
        if before is not None:
            after = self.current()
            assert {subtask: after[subtask] for subtask in before} == before
            assert not [a for a in actions if isinstance(a, (DeployTasks, RestoreCoordinators))]
            assert not cancelled_by(actions)
        for attempt_id in self.tasks.tasks:
            if self.tasks.task_states[attempt_id] is ExecutionState.CANCELING:
                assert attempt_id in self.cancelled, "told again, or it would never be heard"

    def check_told(self, actions: list[JobSchedulerAction], expected: set[int]) -> None:
        """Whatever goes on knows what is complete, and what nobody completes."""
        told: dict[ExecutionAttemptID, set[int]] = {}
        for action in only(actions, OrderCheckpoint):
            assert isinstance(action.order, (CheckpointCompleted, CheckpointAborted))
            for attempt_id in action.attempts:
                told.setdefault(attempt_id, set()).add(action.order.checkpoint_id)
        for attempt_id in self.tasks.tasks:
            if self.is_current(attempt_id) and attempt_id not in self.cancelled:
                assert told.get(attempt_id, set()) == expected

    @invariant()
    def nobody_reads_from_others_than_it_was_deployed_with(self) -> None:
        if hasattr(self, "graph"):
            current = self.current()
            for (name, subtask), (state, number) in current.items():
                if state in EARLY:
                    attempt_id = self.attempt(name, subtask, number)
                    for (data_set, partition), named in self.tasks.producers(attempt_id).items():
                        result = self.graph.result(data_set)
                        assert result is not None
                        assert current[result.producer.vertex.name, partition][1] == named


def cancelled_by(actions: list[JobSchedulerAction]) -> list[ExecutionAttemptID]:
    return [a for cancelled in only(actions, CancelTasks) for a in cancelled.attempts]


TestTakeOverCheckpoints = TakeOverCheckpointsMachine.TestCase
TestTakeOverCheckpoints.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
