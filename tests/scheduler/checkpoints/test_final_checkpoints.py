"""Tasks whose input has ended, and that end with a checkpoint, do not wait for a periodic one."""

from __future__ import annotations

from flinkray.scheduler.checkpoints.actions import PrepareCheckpoint
from flinkray.scheduler.checkpoints.events import CheckpointStep, CheckpointTimerPurpose
from flinkray.scheduler.checkpoints.messages import AwaitCheckpoint, TriggerCheckpoint
from flinkray.scheduler.checkpoints.properties import savepoint
from flinkray.scheduler.checkpoints.trigger_decisions import FIRST_DELAY, NEXT_DELAY
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.builders import JOB, one, only
from tests.scheduler.checkpoints.job_with_checkpoints import (
    JobWithCheckpoints,
    Topology,
    configuration,
    fires,
    orders,
    timers,
)

Actions = list[CheckpointStep]


def awaits(job: JobWithCheckpoints, task: str = "b0", after: int = 0) -> Actions:
    return job.coordinator.awaited(AwaitCheckpoint(JOB, job.attempt(task), after))


def final_timer(actions: Actions) -> StartTimer:
    (timer,) = timers(actions, CheckpointTimerPurpose.FINAL)
    return timer


def fire(job: JobWithCheckpoints, timer: StartTimer) -> Actions:
    job.now += timer.delay
    return job.coordinator.timer(fires(timer), job.now)


def test_task_at_its_end_gets_a_final_checkpoint_without_periodic_checkpoints() -> None:
    job = JobWithCheckpoints(topology=Topology(1, 2))
    timer = final_timer(awaits(job, "b0"))
    assert timer.delay == FIRST_DELAY
    assert awaits(job, "b1") == []  # it is covered as well
    actions = fire(job, timer)
    assert final_timer(actions).delay == NEXT_DELAY
    assert orders(job.prepare(actions), TriggerCheckpoint)
    job.complete(1)
    assert fire(job, final_timer(actions)) == []
    assert final_timer(awaits(job, "b0", 1)).delay == FIRST_DELAY


def test_pending_checkpoint_begun_after_the_end_of_a_task_serves_as_its_final_one() -> None:
    job = JobWithCheckpoints()
    first = job.begin()
    timer = final_timer(awaits(job, after=first - 1))
    actions = fire(job, timer)
    assert not only(actions, PrepareCheckpoint)
    job.complete(first)
    assert fire(job, final_timer(actions)) == []


def test_pending_checkpoint_from_before_the_end_of_a_task_is_followed_by_a_final_one() -> None:
    job = JobWithCheckpoints()
    first = job.begin()
    actions = fire(job, final_timer(awaits(job, after=first)))
    assert not only(actions, PrepareCheckpoint), "one at a time"
    actions = job.complete(first)
    assert one(actions, PrepareCheckpoint)


def test_failed_final_checkpoint_is_followed_by_another() -> None:
    job = JobWithCheckpoints()
    actions = fire(job, final_timer(awaits(job)))
    job.prepare(actions)
    job.decline(1, "a0")
    actions = fire(job, final_timer(actions))
    assert one(actions, PrepareCheckpoint)


def test_final_checkpoint_waits_until_all_tasks_run() -> None:
    job = JobWithCheckpoints()
    job.topology.vertices[0].states[0] = ExecutionState.INITIALIZING
    actions = fire(job, final_timer(awaits(job)))
    assert not only(actions, PrepareCheckpoint)
    job.topology.vertices[0].states[0] = ExecutionState.RUNNING
    assert one(fire(job, final_timer(actions)), PrepareCheckpoint)


def test_savepoint_does_not_count_as_final_checkpoint() -> None:
    job = JobWithCheckpoints()
    timer = final_timer(awaits(job))
    job.complete(job.begin(savepoint()))
    assert one(fire(job, timer), PrepareCheckpoint)


def test_failed_task_and_ended_job_need_no_final_checkpoint() -> None:
    job = JobWithCheckpoints()
    timer = final_timer(awaits(job))
    job.coordinator.tasks_ended([job.attempt("b0")], is_finished=False, now=job.now)
    assert fire(job, timer) == []
    job = JobWithCheckpoints()
    timer = final_timer(awaits(job))
    job.coordinator.job_status_changed(JobStatus.CANCELED, job.now)
    assert fire(job, timer) == []
    assert awaits(job) == []


def test_final_checkpoint_respects_the_minimum_pause_of_periodic_checkpoints() -> None:
    job = JobWithCheckpoints(configuration(interval=100.0, min_pause=10.0))
    job.run()
    job.complete(job.begin())
    actions = fire(job, final_timer(awaits(job, after=1)))
    (trigger,) = timers(actions, CheckpointTimerPurpose.TRIGGER)
    assert trigger.delay == 10.0 - FIRST_DELAY
    assert not only(actions, PrepareCheckpoint)
    assert one(job.tick([trigger]), PrepareCheckpoint)


def test_final_checkpoint_ignores_the_pause_without_periodic_checkpoints() -> None:
    job = JobWithCheckpoints(configuration(min_pause=10.0))
    job.run()
    job.complete(job.begin())
    assert one(fire(job, final_timer(awaits(job, after=1))), PrepareCheckpoint)
