"""Elastic jobs that take checkpoints: another parallelism goes on from the latest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flinkray.checkpoint.handles import ChannelStateHandle, FileState, InlineState, TaskState
from flinkray.checkpoint.metadata import CheckpointMetadata, SnapshotKind
from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import JobID
from flinkray.scheduler.checkpoints.actions import (
    PrepareCheckpoint,
    RestoreCoordinators,
    SnapshotFinished,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import (
    CheckpointNotPrepared,
    CheckpointTimerOver,
    CheckpointTimerPurpose,
    SavepointGiven,
)
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.elastic.elastic_job_scheduler import ElasticJobScheduler
from flinkray.scheduler.elastic.parallelism import with_bounds
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    ParallelismBounds,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    SetRequirements,
)
from flinkray.scheduler.reports.spans import RESCALE
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import SourceCoordinatorPlace
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import JOB, one, only
from tests.scheduler.checkpoints import checkpointed
from tests.scheduler.elastic.test_elastic_job_scheduler import ElasticUnderTest
from tests.scheduler.graphs import stream_vertex
from tests.scheduler.job.checkpointed_job import (
    EVERY_MINUTE,
    Actions,
    CheckpointedJob,
    checkpointed_graph,
)
from tests.scheduler.job.test_take_over_checkpoints_stateful import (
    OWNER,
    TakenOverCheckpointedJob,
)


def graph() -> JobGraph:
    """``a -> b``, ``a`` from 1 to 2 and ``b`` from 2 to 4."""
    return checkpointed_graph(
        stream_vertex("a", 2), stream_vertex("b", 4, min_parallelism=2), mode=SchedulerMode.ADAPTIVE
    )


class ElasticCheckpoints(ElasticUnderTest, CheckpointedJob):
    """Subtasks of ``b`` have keyed state."""

    def keyed(self, checkpoint_id: int) -> Actions:
        """All tasks acknowledge."""
        names = [self.name(attempt_id) for attempt_id in self.tasks]
        of_b = checkpointed.keyed_by_range(
            f"/{checkpoint_id}",
            128,
            names.count("b1") and sum(name.startswith("b") for name in names),
        )
        answers = []
        for attempt_id in self.tasks:
            name = self.name(attempt_id)
            state = TaskState({"b": of_b[int(name[1:]) - 1]}) if name[0] == "b" else None
            answers.append(AcknowledgeCheckpoint(JOB, checkpoint_id, attempt_id, state))
        return self.tell(t.TasksReported(tuple(answers)))

    def key_groups(self) -> dict[str, list[tuple[int, int]]]:
        """Task -> the ranges of keyed state that it begins with."""
        return {
            self.name(attempt_id): [
                (handle.first_key_group, handle.last_key_group)
                for handle in task.restored.state.operators["b"].keyed_state
            ]
            for attempt_id, task in self.tasks.items()
            if task.restored is not None and task.restored.state is not None
        }


def running_with(slots: int) -> ElasticCheckpoints:
    """It has taken one checkpoint."""
    job = ElasticCheckpoints(graph=graph())
    job.tell(t.StartJob())
    actions = job.has(slots)
    if slots < 4:
        job.timer(actions)
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger()
    job.keyed(1)
    job.store()
    return job


def test_elastic_job_that_grows_restores_the_latest_checkpoint() -> None:
    job = running_with(2)
    job.now += 100.0
    job.has(4)
    assert job.status is JobStatus.RESTARTING
    actions = job.stopped()
    assert job.tasks_of(actions) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    assert job.key_groups() == {
        "b1": [(0, 31)],
        "b2": [(32, 63)],
        "b3": [(64, 95)],
        "b4": [(96, 127)],
    }
    restored = one(job.log, RestoreCoordinators)
    assert restored == RestoreCoordinators(1, {"a": InlineState(b"a at 1")}, 1)
    assert {task.restores for task in job.tasks.values()} == {1}
    job.report(list(job.tasks), ExecutionState.RUNNING)
    orders = job.orders(job.trigger())
    assert sorted(who.split("#")[0] for _, who in orders) == ["a1", "a2"]


def test_elastic_job_that_shrinks_after_a_loss_restores_the_latest_checkpoint() -> None:
    job = running_with(4)
    job.has(3)
    job.timer(job.restarted())
    assert job.key_groups() == {
        "b1": [(0, 31), (32, 42)],
        "b2": [(43, 63), (64, 85)],
        "b3": [(86, 95), (96, 127)],
    }
    assert one(job.log, RestoreCoordinators).checkpoint_id == 1


def test_scaling_waits_for_the_outcome_of_a_checkpoint_being_stored() -> None:
    job = running_with(2)
    job.cut(job.prepare(job.tick()))
    job.keyed(2)
    job.now += 100.0
    job.has(4)
    assert only(job.stopped(), DeployTasks) == []
    job.store()
    job.answer()
    assert {task.restored.checkpoint_id for task in job.tasks.values() if task.restored} == {2}
    assert len(job.tasks) == 6


def bounds_of_b(job: ElasticCheckpoints, lower: int, upper: int) -> ParallelismBounds:
    (b,) = (v for v in job.graph.vertices if v.name == "b")
    return ParallelismBounds(b.vertex_id, lower, upper)


def stops(job: ElasticCheckpoints) -> None:
    """The savepoint that it is to be stopped with is the last that was taken: it ends with that."""
    job.finish(" ".join(job.name(attempt_id) for attempt_id in job.tasks))
    assert job.status is JobStatus.FINISHED
    finished = only(job.log, SnapshotFinished)[-1]
    assert (finished.path, finished.error) == ("/chk-2", None)


@pytest.mark.parametrize("is_drain", [False, True])
def test_slots_that_come_while_a_stop_savepoint_is_written_cause_no_restart(
    is_drain: bool,
) -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(synchronous_savepoint(is_drain=is_drain))
    actions = job.has(4)
    assert (job.status, only(actions, CancelTasks)) == (JobStatus.RUNNING, [])
    job.keyed(2)
    job.store()
    stops(job)


def test_slots_that_come_while_tasks_finish_after_a_stop_savepoint_cause_no_restart() -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(synchronous_savepoint(is_drain=False))
    job.keyed(2)
    job.store()
    job.finish("a1 a2 b1")
    actions = job.has(4)
    assert (job.status, only(actions, CancelTasks)) == (JobStatus.RUNNING, [])
    stops(job)


def test_scaling_timer_that_fires_during_a_stop_with_savepoint_restarts_no_tasks() -> None:
    job = running_with(2)
    waits = job.has(4)
    job.trigger(synchronous_savepoint(is_drain=False))
    assert only(job.timer(waits), CancelTasks) == []
    job.keyed(2)
    job.store()
    stops(job)


@pytest.mark.parametrize("is_complete", [False, True])
def test_job_that_gets_new_bounds_during_a_stop_with_savepoint_still_stops(
    is_complete: bool,
) -> None:
    job = running_with(4)
    job.trigger(synchronous_savepoint(is_drain=False))
    if is_complete:
        job.keyed(2)
        job.store()
        job.finish("a1 a2 b1")
    job.tell(t.ResizeJob((bounds_of_b(job, 1, 2),)))
    assert job.status is JobStatus.RUNNING
    if not is_complete:
        job.keyed(2)
        job.store()
    stops(job)


@pytest.mark.parametrize("is_resized", [False, True])
def test_job_whose_stop_savepoint_got_no_id_is_scaled_to_the_new_slots_and_bounds(
    is_resized: bool,
) -> None:
    """The tasks were never triggered, so no failure is counted."""
    job = running_with(4 if is_resized else 2)
    job.now += 100.0
    (wanted,) = only(job.request(synchronous_savepoint(is_drain=False)), PrepareCheckpoint)
    if is_resized:
        job.tell(t.ResizeJob((bounds_of_b(job, 1, 3),)))
    else:
        job.has(4)
    assert only(job.log, CancelTasks) == []
    job.told(CheckpointNotPrepared(wanted.number, "no id"))
    assert job.status is JobStatus.RESTARTING
    expected = "a1#2 a2#2 b1#2 b2#2 b3#2" + ("" if is_resized else " b4#2")
    assert job.tasks_of(job.stopped()) == expected


def test_job_grows_by_new_slots_after_its_stop_savepoint_is_declined() -> None:
    """The job is restarted once, because of the failure."""
    job = running_with(2)
    job.now += 100.0
    job.trigger(synchronous_savepoint(is_drain=False))
    job.has(4)
    job.decline(2, "b1")
    assert only(job.stopped(), DeployTasks) == [], "the delay of the restart is not over"
    assert job.tasks_of(job.restarted()) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    assert {task.restored.checkpoint_id for task in job.tasks.values() if task.restored} == {1}


def test_failure_during_a_stop_restarts_the_job_once_with_all_slots_it_has_by_then() -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(synchronous_savepoint(is_drain=False))
    job.keyed(2)
    job.store()
    job.has(4)
    job.fail("b1")
    assert job.tasks_of(job.restarted()) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger()
    job.keyed(3)
    job.store()
    assert (job.status, len(job.tasks)) == (JobStatus.RUNNING, 6)


# --- snapshots that users have asked for ----------------------------------------------------------


def answers(job: ElasticCheckpoints) -> list[tuple[int, str | None]]:
    """To users, so far: the number of each request, and the reason why it was refused."""
    return [
        (it.request_id, it.error.reason.name if isinstance(it.error, CheckpointError) else None)
        for it in only(job.log, SnapshotFinished)[1:]
    ]


def expires(job: ElasticCheckpoints) -> Actions:
    """The time is over that the checkpoint has which was begun last."""
    timers = [timer.event for timer in only(job.log, StartTimer)]
    over = [event for event in timers if isinstance(event, CheckpointTimerOver)]
    expiry = [event for event in over if event.purpose is CheckpointTimerPurpose.EXPIRY]
    return job.told(expiry[-1])


@pytest.mark.parametrize("is_resized", [False, True])
@pytest.mark.parametrize("properties", [savepoint(), None])
def test_job_is_scaled_once_the_users_snapshot_is_complete(
    properties: CheckpointProperties | None, is_resized: bool
) -> None:
    job = running_with(4 if is_resized else 2)
    job.now += 100.0
    wanted = job.request(properties)
    if is_resized:
        job.tell(t.ResizeJob((bounds_of_b(job, 1, 3),)))
    else:
        job.has(4)
    job.cut(job.prepare(wanted))
    job.keyed(2)
    assert (job.status, only(job.log, CancelTasks)) == (JobStatus.RUNNING, [])
    actions = job.store()
    assert job.status is JobStatus.RESTARTING
    first = next(a for a in actions if isinstance(a, SnapshotFinished | CancelTasks))
    assert isinstance(first, SnapshotFinished), "whoever waits for it need not wait any longer"
    assert answers(job) == [(2, None)]
    expected = "a1#2 a2#2 b1#2 b2#2 b3#2" + ("" if is_resized else " b4#2")
    assert job.tasks_of(job.stopped()) == expected


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (lambda job: job.decline(2, "b1"), "CHECKPOINT_DECLINED"),
        (expires, "CHECKPOINT_EXPIRED"),
    ],
)
def test_job_is_scaled_once_the_users_savepoint_has_failed(
    ends: Callable[[ElasticCheckpoints], Actions], reason: str
) -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(savepoint())
    job.has(4)
    assert job.status is JobStatus.RUNNING
    ends(job)
    assert answers(job) == [(2, reason)]
    assert job.tasks_of(job.stopped()) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"


def test_task_failure_while_scaling_awaits_a_savepoint_restarts_with_new_parallelism() -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(savepoint())
    job.has(4)
    job.fail("b1")
    assert only(job.stopped(), DeployTasks) == [], "the delay of the restart is not over"
    assert job.tasks_of(job.restarted()) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    assert answers(job) == [(2, "TASK_FAILURE")]
    assert [e.text for e in job.scheduler.exceptions()] == ["it broke"]


def test_job_suspended_while_scaling_waits_for_a_savepoint_is_not_scaled() -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(savepoint())
    job.has(4)
    job.tell(t.SuspendJob("another leads"))
    job.confirm_cancellations()
    assert job.status is JobStatus.SUSPENDED
    assert RESCALE not in [span.name for span in job.scheduler.take_spans()]


def test_periodic_checkpoint_does_not_hold_up_the_scaling_of_a_job() -> None:
    job = running_with(2)
    job.now += 100.0
    job.cut(job.prepare(job.tick()))
    job.has(4)
    assert job.status is JobStatus.RESTARTING


def test_scaling_does_not_wait_for_savepoints_requested_after_the_new_slots_came() -> None:
    """Otherwise scaling might wait for ever. The later savepoint fails before it begins and may be
    requested again."""
    job = running_with(2)
    job.now += 100.0
    job.trigger(savepoint())
    job.has(4)
    job.request(savepoint())
    job.keyed(2)
    job.store()
    assert job.status is JobStatus.RESTARTING
    assert answers(job) == [(2, None), (3, "JOB_FAILOVER_REGION")]
    assert only(job.log, SnapshotFinished)[-1].checkpoint_id is None


def test_scaling_waits_for_a_new_savepoint_if_its_slots_were_lost_and_came_again() -> None:
    job = running_with(2)
    job.now += 100.0
    job.trigger(savepoint())
    job.has(4)
    job.has(2)
    job.keyed(2)
    job.store()
    job.trigger(savepoint())
    job.has(4)
    assert only(job.log, CancelTasks) == []
    job.keyed(3)
    job.store()
    assert job.status is JobStatus.RESTARTING


def test_savepoint_requested_while_the_job_is_being_scaled_fails_before_it_begins() -> None:
    """The user may request the savepoint again once the job runs."""
    job = running_with(2)
    job.now += 100.0
    job.has(4)
    job.request(savepoint())
    assert answers(job) == [(2, "JOB_FAILOVER_REGION")]
    assert only(job.log, SnapshotFinished)[-1].checkpoint_id is None
    job.stopped()
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger(savepoint())
    job.keyed(2)
    job.store()
    assert answers(job)[1:] == [(3, None)]


def test_scaling_after_a_take_over_does_not_wait_for_a_savepoint_begun_before_it() -> None:
    """The next JobMaster aborts that savepoint, and waits for the savepoint requested in its
    place."""
    job = TakenOverCheckpointedJob(graph(), kind=ElasticJobScheduler)
    job.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    b = job.graph.vertices[1].vertex_id
    job.tell(t.StartJob())
    slots = tuple(job.new_slot() for _ in range(4))
    job.tell(t.PoolSlotsChanged(slots))
    job.give()
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger(savepoint())
    smaller = (ParallelismBounds(b, 1, 3),)
    job.tell(t.ResizeJob(smaller))
    assert only(job.log, CancelTasks) == []

    job.graph = with_bounds(job.graph, smaller)
    job.next_job_master()
    job.tell(t.PoolSlotsChanged(slots))
    job.take_over(begun_checkpoints={1: "/chk-1"})

    assert job.status is JobStatus.RESTARTING
    job.confirm_cancellations()
    job.give()
    assert sorted(map(job.name, job.tasks)) == ["a1", "a2", "b1", "b2", "b3"]
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger(savepoint())
    actions = job.tell(t.ResizeJob((ParallelismBounds(b, 1, 2),)))
    assert only(actions, CancelTasks) == []
    job.acknowledge(2)
    job.store()
    assert job.status is JobStatus.RESTARTING


def shrinking() -> TakenOverCheckpointedJob:
    """It may not be restarted, and is told to run with fewer subtasks."""
    of_job = replace(graph(), restart_strategy=FixedDelayRestart(0, 0.0))
    job = TakenOverCheckpointedJob(of_job, kind=ElasticJobScheduler)
    job.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    job.tell(t.StartJob())
    job.tell(t.PoolSlotsChanged(tuple(job.new_slot() for _ in range(4))))
    job.give()
    job.report(list(job.tasks), ExecutionState.RUNNING)
    smaller = (ParallelismBounds(job.graph.vertices[1].vertex_id, 1, 3),)
    job.graph = with_bounds(job.graph, smaller)
    job.tell(t.ResizeJob(smaller))
    return job


def goes_on(job: TakenOverCheckpointedJob, *, restarts: int = 0) -> None:
    """With all that is there, under the next JobMaster."""
    job.next_job_master()
    job.take_over()
    assert (job.status, job.scheduler.restarts) == (JobStatus.RUNNING, restarts)
    job.happens(list(job.tasks), ExecutionState.CANCELED)
    job.tell(t.PoolSlotsChanged(tuple(job.slots.values())))
    job.give()
    assert sorted(map(job.name, job.tasks)) == ["a1", "a2", "b1", "b2", "b3"]


@pytest.mark.parametrize("are_over", [False, True])
def test_take_over_during_scaling_does_not_count_as_failure(are_over: bool) -> None:
    job = shrinking()
    assert job.status is JobStatus.RESTARTING
    if are_over:
        job.happens(list(job.tasks), ExecutionState.CANCELED)
    goes_on(job)


def test_take_over_before_the_tasks_of_a_scaled_job_are_deployed_counts_no_failure() -> None:
    """The sources were not restored yet. The next JobMaster cannot know that no task had begun,
    and counts a restart, which no limit refuses."""
    job = shrinking()
    job.confirm_cancellations()
    job.carried_out = 1
    job.give()
    assert job.notes is not None
    assert (job.notes.parallelisms, job.notes.restores, job.tasks) == ((2, 3), 1, {})
    goes_on(job, restarts=1)


def test_job_with_too_few_slots_still_requires_all_slots_after_a_take_over() -> None:
    """The slots that the job has are part of what it requires: otherwise it would never grow."""
    job = TakenOverCheckpointedJob(graph(), kind=ElasticJobScheduler)
    job.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    job.tell(t.StartJob())
    job.tell(t.PoolSlotsChanged(tuple(job.new_slot() for _ in range(2))))
    job.tell(only(job.log, StartTimer)[-1].event)
    job.now += 10.0
    job.tell(only(job.log, StartTimer)[-1].event)
    job.give()
    job.report(list(job.tasks), ExecutionState.RUNNING)
    assert len(job.tasks) == 4
    job.next_job_master()
    requirements = only(job.take_over(), SetRequirements)[-1].requirements.requirements
    assert sum(requirement.count for requirement in requirements) == 4


def test_job_waiting_for_slots_at_a_take_over_requests_only_the_available_slots() -> None:
    """Its JobMaster has noted nothing except the place of the source coordinator."""
    job = TakenOverCheckpointedJob(graph(), kind=ElasticJobScheduler)
    job.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    job.tell(t.StartJob())
    job.tell(t.SourceCoordinatorIsAt(SourceCoordinatorPlace(0, OWNER, "sources")))
    slots = tuple(job.new_slot() for _ in range(2))
    job.tell(t.PoolSlotsChanged(slots))
    job.next_job_master()
    job.take_over()
    job.tell(t.PoolSlotsChanged(slots))
    assert not job.wanted, "it waits for more for a while"


def test_restart_counted_by_the_last_job_master_is_counted_once_at_a_take_over() -> None:
    """A JobMaster without notes has counted the restart, and died before the job had its slots
    again."""
    job = TakenOverCheckpointedJob(graph(), kind=ElasticJobScheduler)
    job.place = lambda: SourceCoordinatorPlace(0, OWNER, "sources", restores=0)
    job.next_job_master()
    job.take_over(has_run=True)
    assert job.scheduler.restarts == 1
    job.tell(t.SourceCoordinatorIsAt(SourceCoordinatorPlace(0, OWNER, "sources")))
    job.next_job_master()
    job.take_over(has_run=True)
    assert job.scheduler.restarts == 1


def test_job_recovered_from_another_job_master_starts_from_its_checkpoint() -> None:
    before = running_with(4)
    left = before.scheduler._checkpoints._coordinator.retained  # type: ignore[attr-defined]
    job = ElasticCheckpoints(graph=graph())
    job.scheduler.checkpoints_recovered(left)
    job.tell(t.StartJob())
    job.timer(job.has(2))
    assert job.key_groups() == {"b1": [(0, 31), (32, 63)], "b2": [(64, 95), (96, 127)]}
    assert one(job.log, RestoreCoordinators).restores == 1


# --- state with other key groups ------------------------------------------------------------------


def left_with(key_groups: int) -> CompletedCheckpoint:
    """What an earlier JobMaster has restored the job from: ``b`` had four subtasks."""
    of_b = checkpointed.keyed_by_range("/s", key_groups, 4)
    operators = (checkpointed.operator("b", of_b, max_parallelism=key_groups),)
    metadata = CheckpointMetadata(
        JobID.generate(), 7, 1000, SnapshotKind.SAVEPOINT, operators, flinkray_version="x"
    )
    return CompletedCheckpoint(metadata, savepoint(), "/sp/_metadata")


def begun(key_groups: int, slots: int, graph: JobGraph) -> ElasticCheckpoints:
    job = ElasticCheckpoints(graph=graph)
    job.scheduler.checkpoints_recovered([left_with(key_groups)])
    job.tell(t.StartJob())
    actions = job.has(slots)
    if not job.tasks:
        job.timer(actions)
    job.report(list(job.tasks), ExecutionState.RUNNING)
    return job


def parallelism_of_b(job: ElasticCheckpoints) -> int:
    return sum(job.name(attempt_id)[0] == "b" for attempt_id in job.tasks)


def test_max_parallelism_of_a_job_becomes_that_of_its_restored_state() -> None:
    """DI-20: bounds above it are refused before they are stored."""
    a, b = (vertex.vertex_id for vertex in graph().vertices)
    job = ElasticCheckpoints(graph=graph())
    assert job.scheduler.max_parallelism == {a: 128, b: 128}
    job.scheduler.checkpoints_recovered([left_with(8)])
    assert job.scheduler.max_parallelism == {a: 128, b: 8}, "before it runs, too"
    job = begun(8, 4, graph())
    assert job.scheduler.max_parallelism == {a: 128, b: 8}
    assert job.scheduler.details().warnings == ()


@pytest.mark.parametrize("lower", [1, 10])
def test_job_with_bounds_above_the_key_groups_of_its_state_grows_to_the_key_groups(
    lower: int,
) -> None:
    """DI-20: the bounds were accepted before the state was known. The next JobMaster limits the
    job in the same way."""
    job = begun(8, 4, graph())
    bounds = bounds_of_b(job, lower, 20)
    job.now += 100.0
    actions = job.tell(t.ResizeJob((bounds,)))
    assert one(actions, SetRequirements).requirements.requirements[0].count == 8
    job.now += 100.0
    job.has(20)
    job.stopped()
    assert (job.status, parallelism_of_b(job)) == (JobStatus.RUNNING, 8)
    (warning,) = job.scheduler.progress().warnings
    assert warning == (
        "vertex 'b' may have 20 subtasks, and gets 8 at most: its state has so many key groups"
    )

    job = begun(8, 20, with_bounds(graph(), (bounds,)))
    assert (job.status, parallelism_of_b(job)) == (JobStatus.RUNNING, 8)
    assert job.scheduler.details().warnings == (warning,)


def test_job_grows_beyond_its_default_key_groups_if_its_state_has_more() -> None:
    """DI-20."""
    job = begun(1024, 4, graph())
    bounds = (bounds_of_b(job, 1, 200),)
    stored = with_bounds(graph(), bounds, job.scheduler.max_parallelism)
    job.now += 100.0
    job.tell(t.ResizeJob(bounds))
    job.now += 100.0
    job.has(200)
    job.stopped()
    assert parallelism_of_b(job) == 200
    assert parallelism_of_b(begun(1024, 200, stored)) == 200


@pytest.mark.parametrize("is_set", [False, True])
def test_max_parallelism_must_equal_that_of_the_state_only_if_the_program_sets_it(
    is_set: bool,
) -> None:
    """DI-20: a derived max parallelism becomes that of the state, also if the parallelism was
    changed."""
    vertices = [
        replace(vertex, max_parallelism=128) if is_set else vertex for vertex in graph().vertices
    ]
    given = replace(graph(), vertices=tuple(vertices))
    b = given.vertices[1].vertex_id
    job = begun(64, 5, with_bounds(given, (ParallelismBounds(b, 1, 100),)))
    if not is_set:
        assert parallelism_of_b(job) == 5
        return
    assert job.ended is not None
    failure = str(job.ended.result.failure)
    assert "has max parallelism 64, and the vertex 'b' is configured with 128" in failure


def test_unaligned_checkpoints_of_an_adaptive_job_are_refused() -> None:
    unaligned = replace(graph(), checkpoints=replace(EVERY_MINUTE, is_unaligned=True))
    with pytest.raises(JobSubmissionError, match=r"unaligned\.enabled at false"):
        validate(unaligned)
    validate(replace(unaligned, scheduler_mode=SchedulerMode.DEFAULT))
    validate(graph())


def given_checkpoint(job_id: JobID, *, in_flight: bool) -> CompletedCheckpoint:
    """Of ``b``, with four subtasks."""
    of_b = checkpointed.keyed_by_range("/s", 128, 4)
    if in_flight:
        channel = ChannelStateHandle(0, 0, FileState("/in-flight", 9))
        of_b[0] = replace(of_b[0], input_channels=(channel,))
    operators = (checkpointed.operator("b", of_b),)
    metadata = CheckpointMetadata(
        job_id, 7, 1000, SnapshotKind.CHECKPOINT, operators, flinkray_version="x"
    )
    return CompletedCheckpoint(metadata, savepoint(), "/sp/_metadata")


def test_elastic_job_with_own_checkpoints_ignores_data_in_flight_of_its_start_state() -> None:
    """The job is restored from its own checkpoints, whatever snapshot it was first started from."""
    left = running_with(4).scheduler._checkpoints._coordinator.retained  # type: ignore[attr-defined]
    job = ElasticCheckpoints(graph=graph())
    job.scheduler.checkpoints_recovered(left)
    job.tell(SavepointGiven(given_checkpoint(JobID.generate(), in_flight=True)))
    job.tell(t.StartJob())
    job.has(4)
    assert job.ended is None
    assert job.key_groups().keys() == {"b1", "b2", "b3", "b4"}


def test_job_with_fixed_parallelism_may_start_from_a_checkpoint_with_data_in_flight() -> None:
    job = CheckpointedJob(
        checkpointed_graph(stream_vertex("a", 2), stream_vertex("b", 4, max_parallelism=128))
    )
    job.tell(SavepointGiven(given_checkpoint(JobID.generate(), in_flight=True)))
    job.run()
    assert job.status is JobStatus.RUNNING
    restored = [task.restored for task in job.tasks.values() if task.restored is not None]
    assert any(it.state is not None and it.state.operators["b"].input_channels for it in restored)


@pytest.mark.parametrize("in_flight", [False, True])
def test_elastic_job_refuses_to_start_from_a_checkpoint_with_data_in_flight(
    in_flight: bool,
) -> None:
    job = ElasticCheckpoints(graph=graph())
    given = given_checkpoint(JobID.generate(), in_flight=in_flight)
    job.tell(SavepointGiven(given))
    job.tell(t.StartJob())
    job.has(4)
    if in_flight:
        assert job.ended is not None
        assert "Take a savepoint first" in str(job.ended.result.failure)
    else:
        assert job.key_groups().keys() == {"b1", "b2", "b3", "b4"}
