"""When a checkpoint is begun, and how it comes to be triggered."""

from __future__ import annotations

import pytest

from flinkray.checkpoint.handles import InlineState
from flinkray.scheduler.checkpoints.actions import (
    PrepareCheckpoint,
    SnapshotCoordinators,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.events import (
    CheckpointsFailJob,
    CheckpointStep,
    CheckpointTimerPurpose,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, TriggerCheckpoint
from flinkray.scheduler.checkpoints.properties import savepoint, synchronous_savepoint
from flinkray.scheduler.checkpoints.trigger_decisions import CATCH_UP_PAUSE
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import one, only
from tests.scheduler.checkpoints.checkpointed import file
from tests.scheduler.checkpoints.job_with_checkpoints import (
    JobWithCheckpoints,
    Topology,
    answers,
    configuration,
    directories,
    discarded,
    expiry,
    fires,
    order,
    orders,
    timers,
)

Reason = CheckpointFailureReason
SAVEPOINT = savepoint()
UNFORCED = savepoint(is_forced=False)
TRIGGER = CheckpointTimerPurpose.TRIGGER
STOP = synchronous_savepoint(is_drain=False)


# --- one after the other --------------------------------------------------------------------------


def test_checkpoint_gets_its_id_before_its_sources_are_triggered() -> None:
    """CP-02, CP-13"""
    job = JobWithCheckpoints(topology=Topology(2, 3))
    job.now = 2.5
    actions = job.request()
    prepare = one(actions, PrepareCheckpoint)
    assert not prepare.properties.is_savepoint
    assert timers(actions, CheckpointTimerPurpose.EXPIRY)[0].delay == 600.0
    job.now = 4.0
    trigger = order(job.prepare(actions), TriggerCheckpoint)
    assert trigger.attempts == (job.attempt("a0"), job.attempt("a1"))
    assert (trigger.order.checkpoint_id, trigger.order.directory) == (1, "chk-1")
    assert trigger.order.timestamp == 1_002_500, "milliseconds since 1970, when it was begun"
    assert (trigger.order.latest_completed, trigger.order.is_whole) == (0, False)


def test_operator_coordinators_are_triggered_once_per_checkpoint_and_before_tasks() -> None:
    """CP-32, CP-30: with the hooks, after the checkpoint is pending."""
    job = JobWithCheckpoints(coordinators=("a", "b"))
    actions = job.prepare(job.request())
    assert actions == [SnapshotCoordinators(1, 1_000_000, ("a", "b"), "chk-1")]
    coordinator = job.coordinator
    assert coordinator.pending_ids == (1,)
    assert coordinator.coordinator_acknowledged(1, "a", InlineState(b"x"), 0.0) == []
    assert coordinator.coordinator_acknowledged(1, "a", InlineState(b"x"), 0.0) == []
    assert orders(coordinator.coordinator_acknowledged(1, "b", None, 0.0), TriggerCheckpoint)
    assert coordinator.coordinator_acknowledged(1, "b", None, 0.0) == []


@pytest.mark.parametrize("state", [ExecutionState.SCHEDULED, ExecutionState.FINISHED])
@pytest.mark.parametrize("number", [0, 1])
def test_checkpoint_request_fails_when_a_task_is_not_running(
    number: int, state: ExecutionState
) -> None:
    """CP-01: a finished task counts as not running if checkpoints end with the first finished
    task."""
    job = JobWithCheckpoints(configuration(allows_finished_tasks=False))
    job.topology.vertices[number].states[0] = state
    actions = job.request()
    assert answers(actions) == {1: Reason.NOT_ALL_REQUIRED_TASKS_RUNNING}
    assert len(actions) == 1
    assert job.coordinator.pending_ids == ()


def test_checkpoints_complete_although_some_source_tasks_have_finished() -> None:
    """CP-01"""
    job = JobWithCheckpoints(topology=Topology(2, 1))
    job.topology.vertices[0].states[0] = ExecutionState.FINISHED
    job.begin()
    job.acknowledge(1, "a1")
    assert only(job.acknowledge(1, "b0"), StoreCheckpoint)


def test_checkpoints_are_triggered_one_at_a_time_and_requests_wait() -> None:
    """CP-14"""
    job = JobWithCheckpoints(configuration(max_concurrent=2))
    first = job.request()
    assert job.request() == []
    triggered = job.prepare(first)
    assert orders(triggered, TriggerCheckpoint)
    assert only(triggered, PrepareCheckpoint)
    assert orders(job.prepare(triggered), TriggerCheckpoint)
    assert job.coordinator.pending_ids == (1, 2)


def test_waiting_checkpoint_starts_if_the_checkpoint_before_it_cannot_get_an_id() -> None:
    """CP-14"""
    job = JobWithCheckpoints()
    first, _ = job.request(), job.request()
    number = one(first, PrepareCheckpoint).number
    actions = job.coordinator.preparation_failed(number, "the counter is gone", 0.0)
    assert answers(actions) == {1: Reason.IO_EXCEPTION}
    assert "the counter is gone" in str(actions[0])
    assert orders(job.prepare(actions), TriggerCheckpoint)
    assert job.coordinator.preparation_failed(number, "again", 0.0) == []
    assert job.coordinator.overview().failed == 1


def test_checkpoint_with_a_reused_id_fails_and_timestamps_never_decrease() -> None:
    """CP-13: the directory is not deleted, because it may be that of the earlier checkpoint with
    the same id."""
    job = JobWithCheckpoints(configuration(max_concurrent=9))
    stamps = []
    for now in (5.0, 3.0, 9.0):
        job.now = now
        stamps.append(order(job.prepare(job.request()), TriggerCheckpoint).order.timestamp)
    assert stamps == [1_005_000, 1_005_000, 1_009_000]
    for checkpoint_id in (3, 2):
        actions = job.prepare(job.request(), checkpoint_id)
        assert list(answers(actions).values()) == [Reason.IO_EXCEPTION]
        assert directories(actions) == []
    assert job.coordinator.pending_ids == (1, 2, 3)


def test_directory_prepared_for_an_expired_checkpoint_is_deleted_once() -> None:
    """CP-15"""
    job = JobWithCheckpoints()
    actions = job.request()
    number = one(actions, PrepareCheckpoint).number
    expired = job.coordinator.timer(expiry(actions), 600.0)
    assert answers(expired) == {1: Reason.CHECKPOINT_EXPIRED}
    assert directories(job.coordinator.prepared(number, 1, "chk-1", 601.0)) == ["chk-1"]
    assert job.coordinator.prepared(number, 1, "chk-1", 601.0) == []
    other = one(job.request(), PrepareCheckpoint).number
    assert number != other
    job.coordinator.prepared(other, 2, "chk-2", 602.0)
    assert job.coordinator.prepared(other, 2, "chk-2", 602.0) == [], "that one is in use"


def test_checkpoint_that_expires_before_its_trigger_is_never_triggered() -> None:
    """CP-15: even if the coordinator answers later. The next request is served."""
    job = JobWithCheckpoints(coordinators=("a",))
    actions = job.request()
    assert only(job.prepare(actions), SnapshotCoordinators)
    assert job.request() == []
    expired = job.coordinator.timer(expiry(actions), 600.0)
    assert answers(expired) == {1: Reason.CHECKPOINT_EXPIRED}
    assert order(expired, CheckpointAborted).attempts == ()
    assert directories(expired) == ["chk-1"], "no task writes to it"
    assert job.coordinator.coordinator_acknowledged(1, "a", None, 601.0) == []
    assert only(job.prepare(expired), SnapshotCoordinators)
    assert job.coordinator.coordinator_acknowledged(1, "a", None, 602.0) == []
    triggered = job.coordinator.coordinator_acknowledged(2, "a", None, 602.0)
    assert orders(triggered, TriggerCheckpoint)


def test_checkpoint_that_a_coordinator_declines_fails_and_its_state_is_discarded() -> None:
    """CP-32, CP-37, CP-31, CP-22: the job does not fail, although it tolerates no failures."""
    job = JobWithCheckpoints(configuration(tolerable_failures=0), coordinators=("a", "b"))
    job.prepare(job.request())
    job.coordinator.coordinator_acknowledged(1, "a", file("of a"), 0.0)
    assert job.coordinator.coordinator_declined(2, "b", "another", 0.0) == []
    actions = job.coordinator.coordinator_declined(1, "b", "it has failed", 0.0)
    assert answers(actions) == {1: Reason.TRIGGER_CHECKPOINT_FAILURE}
    error = one(actions, SnapshotFinished).error
    assert error is not None
    assert "it has failed" in error.text
    assert only(actions, CheckpointsFailJob) == []
    assert orders(actions, TriggerCheckpoint) == []
    assert order(actions, CheckpointAborted).coordinators == ("a", "b")
    assert discarded(actions) == ["of a"]
    assert discarded(job.coordinator.coordinator_acknowledged(1, "b", file("late"), 0.0)) == [
        "late"
    ]
    assert job.coordinator.coordinator_acknowledged(1, "b", None, 0.0) == []


# --- periodic checkpoints -------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
def test_concurrent_checkpoints_never_exceed_the_limit(most: int) -> None:
    """CP-08: as soon as one checkpoint is complete, the next one begins."""
    job = JobWithCheckpoints(configuration(interval=1.0, max_concurrent=most))
    actions = job.run()
    for _ in range(most):
        actions = job.tick(actions)
        assert orders(job.prepare(actions), TriggerCheckpoint)
    for _ in range(3):
        actions = job.tick(actions)
        assert not only(actions, PrepareCheckpoint)
    assert len(job.coordinator.pending_ids) == most
    done = job.complete(1)
    assert len(only(done, PrepareCheckpoint)) == 1, "ticks that were missed are not made up for"
    job.prepare(done)
    assert job.coordinator.pending_ids == tuple(range(2, most + 2))


def test_completed_checkpoint_allows_new_ones_in_place_of_those_it_subsumes() -> None:
    """CP-08"""
    job = JobWithCheckpoints(configuration(interval=1.0, max_concurrent=2))
    actions = job.run()
    for _ in range(2):
        actions = job.tick(actions)
        job.prepare(actions)
    job.complete(2)
    assert list(job.coordinator.pending_ids) == []
    for _ in range(2):
        actions = job.tick(actions)
        job.prepare(actions)
    assert job.coordinator.pending_ids == (3, 4)


def test_periodic_checkpoint_due_within_the_minimum_pause_starts_when_the_pause_ends() -> None:
    """CP-09, CP-17"""
    job = JobWithCheckpoints(configuration(interval=50.0, min_pause=50.0), random=0.0)
    actions = job.tick(job.run())
    job.prepare(actions)
    job.now = 90.0
    job.complete(1)
    job.now = 100.0
    stale = timers(actions, CheckpointTimerPurpose.TRIGGER)[0]
    early = job.coordinator.timer(fires(stale), 100.0)
    assert not only(early, PrepareCheckpoint)
    first, put_off = timers(early, CheckpointTimerPurpose.TRIGGER)
    assert put_off.delay == 40.0
    assert job.coordinator.timer(fires(first), 130.0) == [], "only one timer counts"
    assert only(job.coordinator.timer(fires(put_off), 140.0), PrepareCheckpoint)


def test_minimum_pause_does_not_delay_user_requests() -> None:
    """CP-17"""
    job = JobWithCheckpoints(configuration(interval=50.0, min_pause=50.0))
    job.begin()
    job.complete(1)
    assert orders(job.prepare(job.request()), TriggerCheckpoint)
    job.complete(2)
    assert only(job.request(UNFORCED), PrepareCheckpoint)


def test_failed_checkpoint_starts_no_minimum_pause() -> None:
    """CP-09"""
    job = JobWithCheckpoints(configuration(interval=50.0, min_pause=50.0), random=0.0)
    actions = job.tick(job.run())
    job.prepare(actions)
    job.decline(1, "a0")
    assert only(job.tick(actions), PrepareCheckpoint)


def taken_over(job: JobWithCheckpoints) -> list[CheckpointStep]:
    """The job runs on, with another JobMaster."""
    started = job.run()
    taken = job.coordinator.take_over(0, {}, job.topology.attempts, job.now)
    assert job.coordinator.timer(fires(timers(started, TRIGGER)[-1]), job.now) == [], (
        "it is replaced"
    )
    return taken


def test_the_first_checkpoint_after_a_take_over_begins_at_once() -> None:
    """While no JobMaster led, nothing was committed. Later checkpoints have their usual times."""
    job = JobWithCheckpoints(configuration(interval=600.0))
    actions = taken_over(job)
    assert timers(actions, TRIGGER)[-1].delay == 0.0
    triggered = job.prepare(job.tick(actions))
    assert orders(triggered, TriggerCheckpoint)
    assert timers(triggered, TRIGGER)[-1].delay == 600.0
    job.complete(1)
    assert timers(job.tick(triggered), TRIGGER)[-1].delay == 600.0


def test_job_without_periodic_checkpoints_takes_no_checkpoint_after_a_take_over() -> None:
    job = JobWithCheckpoints()
    job.run()
    assert job.coordinator.take_over(0, {}, job.topology.attempts, 0.0) == []


def test_minimum_pause_after_a_take_over_counts_from_the_last_stored_checkpoint() -> None:
    """CP-09: from the start of the checkpoint, because nobody knows when it was completed."""
    before = JobWithCheckpoints()
    before.now = 90.0
    before.begin()
    before.complete(1)
    job = JobWithCheckpoints(configuration(interval=600.0, min_pause=60.0))
    job.now = 100.0
    job.coordinator.recovered(before.coordinator.retained)
    actions = taken_over(job)
    assert timers(actions, TRIGGER)[-1].delay == 50.0
    assert only(job.tick(actions), PrepareCheckpoint)


def test_checkpoint_due_after_a_take_over_is_retried_until_tasks_are_triggered() -> None:
    """A task may still be starting. No second checkpoint starts while one is being prepared."""
    job = JobWithCheckpoints(configuration(interval=600.0, max_concurrent=2), coordinators=("a",))
    actions = taken_over(job)
    job.topology.vertices[1].states[0] = ExecutionState.DEPLOYING
    for _ in range(2):
        actions = job.tick(actions)
        assert not only(actions, PrepareCheckpoint)
        assert timers(actions, TRIGGER)[-1].delay == CATCH_UP_PAUSE
    job.topology.vertices[1].states[0] = ExecutionState.RUNNING
    begun = job.tick(actions)
    assert only(begun, PrepareCheckpoint)
    waiting = job.tick(begun)
    assert not only(waiting, PrepareCheckpoint)
    job.prepare(begun)
    waiting = job.tick(waiting)
    assert not only(waiting, PrepareCheckpoint)
    triggered = job.coordinator.coordinator_acknowledged(1, "a", None, job.now)
    assert orders(triggered, TriggerCheckpoint)
    assert timers(triggered, TRIGGER)[-1].delay == 600.0
    assert job.tick(waiting) == [], "it is replaced"


def test_failed_master_hook_fails_the_checkpoint_and_later_state_is_discarded() -> None:
    """CP-31"""
    job = JobWithCheckpoints(coordinators=("a",))
    job.prepare(job.request())
    actions = job.coordinator.coordinator_declined(1, None, "master hook 'h' of b", 0.0)
    error = one(actions, SnapshotFinished).error
    assert error is not None
    assert error.text.endswith("could not be triggered: master hook 'h' of b")
    late = job.coordinator.coordinator_acknowledged(1, "a", file("of a"), 0.0)
    assert discarded(late) == ["of a"]


def test_checkpoint_aborted_by_the_loss_of_a_coordinator_is_taken_again_at_once() -> None:
    """The coordinator starts again, and the tasks keep running."""
    job = JobWithCheckpoints(configuration(interval=600.0), coordinators=("a",))
    job.prepare(job.tick(job.run()))
    lost = job.coordinator.coordinator_declined(1, "a", "it died", job.now, is_lost=True)
    assert timers(lost, TRIGGER)[-1].delay == 0.0
    assert only(job.tick(lost), PrepareCheckpoint)
    refused = JobWithCheckpoints(configuration(interval=600.0), coordinators=("a",))
    refused.prepare(refused.tick(refused.run()))
    declined = refused.coordinator.coordinator_declined(1, "a", "no room", refused.now)
    assert timers(declined, TRIGGER) == [], "an error may come again"


def test_stopped_checkpoint_scheduler_takes_only_checkpoints_that_users_request() -> None:
    """CP-11"""
    job = JobWithCheckpoints(configuration(interval=1.0))
    actions = job.tick(job.run())
    job.prepare(actions)
    stopped = job.coordinator.stop_scheduler(job.now)
    assert order(stopped, CheckpointAborted).order.checkpoint_id == 1
    assert job.tick(actions) == []
    assert orders(job.prepare(job.request()), TriggerCheckpoint)
    again = job.run()
    assert job.run() == [], "it runs already"
    assert timers(again, CheckpointTimerPurpose.TRIGGER)
    job.complete(2)
    assert only(job.tick(again), PrepareCheckpoint)


def test_stopping_the_checkpoint_scheduler_drops_the_waiting_periodic_request() -> None:
    """CP-11"""
    job = JobWithCheckpoints(configuration(interval=1.0))
    job.begin()
    actions = job.tick(job.run())
    assert not only(actions, PrepareCheckpoint)
    job.coordinator.stop_scheduler(job.now)
    job.begin()
    assert not only(job.complete(2), PrepareCheckpoint)


def test_checkpoint_requests_and_timers_after_the_job_end_start_no_checkpoint() -> None:
    """CP-12"""
    job = JobWithCheckpoints(configuration(interval=1.0))
    actions = job.run()
    job.coordinator.shutdown(JobStatus.FINISHED, 1.0)
    assert answers(job.request()) == {1: Reason.CHECKPOINT_COORDINATOR_SHUTDOWN}
    assert job.tick(actions) == []
    assert job.run() == []
    assert job.coordinator.shutdown(JobStatus.FINISHED, 1.0) == []


# --- requests -------------------------------------------------------------------------------------


def test_forced_savepoint_starts_at_once_and_another_before_waiting_checkpoints() -> None:
    """CP-17"""
    job = JobWithCheckpoints()
    job.begin()
    assert job.request() == []
    assert job.request(UNFORCED) == []
    for _ in range(2):
        assert orders(job.prepare(job.request(SAVEPOINT)), TriggerCheckpoint)
    assert job.coordinator.pending_ids == (1, 2, 3)
    for checkpoint_id in (1, 2):
        assert not only(job.complete(checkpoint_id), PrepareCheckpoint)
    begun = job.complete(3)
    assert one(begun, PrepareCheckpoint).properties == UNFORCED


def test_checkpoint_request_beyond_1000_waiting_requests_is_refused_at_once() -> None:
    """CP-16"""
    job = JobWithCheckpoints()
    job.begin()
    for _ in range(1000):
        assert job.request() == []
    assert answers(job.request()) == {1002: Reason.TOO_MANY_CHECKPOINT_REQUESTS}
    assert answers(job.request(UNFORCED)) == {1001: Reason.TOO_MANY_CHECKPOINT_REQUESTS}


def test_savepoint_lacking_rows_handed_to_spark_is_refused_and_a_checkpoint_is_not() -> None:
    """The job itself finds rows again that lie in its own files."""
    job = JobWithCheckpoints()
    giver, taker = job.topology.vertices
    giver.hands_over_to, taker.brings_back_of = ("spark",), "spark"
    giver.states[0] = ExecutionState.FINISHED
    for properties in (SAVEPOINT, STOP):
        refused = one(job.request(properties), SnapshotFinished)
        assert "Spark still processes its records" in str(refused.error)
    assert only(job.request(), PrepareCheckpoint)


def test_savepoint_is_refused_if_only_the_first_reader_of_a_spark_query_has_finished() -> None:
    job = JobWithCheckpoints(topology=Topology(2, 1))
    source = job.topology.vertices[0]
    source.brings_back_of = "spark"
    source.states[0] = ExecutionState.FINISHED
    for properties in (SAVEPOINT, STOP):
        refused = one(job.request(properties), SnapshotFinished)
        assert "adds the state of the Spark query" in str(refused.error)
    assert only(job.request(), PrepareCheckpoint)


def test_no_checkpoint_starts_while_a_stop_savepoint_is_taken() -> None:
    """CP-20: the tasks process no more records."""
    job = JobWithCheckpoints(configuration(interval=1.0, max_concurrent=9))
    ticking = job.run()
    stop = job.request(STOP)
    assert job.request(SAVEPOINT) == []
    assert not only(job.prepare(stop), PrepareCheckpoint)
    ticking = job.tick(ticking)
    assert not only(ticking, PrepareCheckpoint)
    done = job.complete(1)
    assert answers(done) == {}, "tasks have not ended yet"
    assert not only(done, PrepareCheckpoint)
    ended = job.coordinator.job_status_changed(JobStatus.FINISHED, job.now)
    assert answers(ended) == {1: "chk-1", 2: Reason.CHECKPOINT_COORDINATOR_SHUTDOWN}


def test_waiting_checkpoint_request_starts_when_the_stop_with_savepoint_fails() -> None:
    """CP-20"""
    job = JobWithCheckpoints()
    stop = job.request(STOP)
    assert job.request(SAVEPOINT) == []
    number = one(stop, PrepareCheckpoint).number
    actions = job.coordinator.preparation_failed(number, "no id", 0.0)
    assert not only(actions, CheckpointsFailJob), "tasks were not told"
    assert one(actions, PrepareCheckpoint).properties == SAVEPOINT


@pytest.mark.parametrize(
    ("is_finished", "reason"),
    [(True, Reason.CHECKPOINT_DECLINED_TASK_CLOSING), (False, Reason.TASK_FAILURE)],
)
def test_task_that_ends_while_a_checkpoint_is_prepared_aborts_the_checkpoint(
    *, is_finished: bool, reason: Reason
) -> None:
    """The task would have had to acknowledge, and never would. The next checkpoint begins."""
    job = JobWithCheckpoints(topology=Topology(2, 1))
    prepare = job.request()
    job.request()
    job.topology.vertices[0].states[1] = ExecutionState.FINISHED
    ended = [job.attempt("a1")]
    actions = job.coordinator.tasks_ended(ended, is_finished=is_finished, now=job.now)
    assert answers(actions) == {1: reason}
    assert len(only(actions, PrepareCheckpoint)) == 1
    assert directories(job.prepare(prepare)) == ["chk-1"]
    (trigger,) = orders(job.prepare(actions), TriggerCheckpoint)
    assert trigger.attempts == (job.attempt("a0"),)


def test_end_of_an_unrelated_task_does_not_abort_a_checkpoint_being_prepared() -> None:
    job = JobWithCheckpoints()
    prepare = job.request()
    earlier = job.attempt("a0")
    job.topology.vertices[0].attempts[0] += 1
    later = job.attempt("a0")
    assert job.coordinator.tasks_ended([later], is_finished=False, now=job.now) == []
    assert orders(job.prepare(prepare), TriggerCheckpoint)[0].attempts == (earlier,)
