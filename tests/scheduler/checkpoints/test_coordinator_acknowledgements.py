"""What answers of tasks lead to: complete, failed, subsumed, discarded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.checkpoint.handles import InlineState
from flinkray.scheduler.checkpoints.actions import (
    CloseCheckpointStores,
    DiscardCheckpoint,
    ForgetCheckpoint,
    PrepareCheckpoint,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.events import CheckpointsFailJob
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import (
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointRetentionPolicy
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import JOB, OTHER_JOB, one, only
from tests.scheduler.checkpoints.checkpointed import UNION, file, named, written
from tests.scheduler.checkpoints.job_with_checkpoints import (
    JobWithCheckpoints,
    Topology,
    answers,
    configuration,
    directories,
    discarded,
    expiry,
    order,
    orders,
    state,
)

Reason = CheckpointFailureReason
SAVEPOINT = savepoint()
STOP = synchronous_savepoint(is_drain=True)
CONCURRENT = configuration(max_concurrent=9)


def aborted(actions: object) -> list[int]:
    return [a.order.checkpoint_id for a in orders(actions, CheckpointAborted)]  # type: ignore[arg-type]


def subsumed(actions: object) -> list[int]:
    """Those that are discarded although they were complete."""
    return [a.checkpoint.checkpoint_id for a in only(actions, DiscardCheckpoint)]  # type: ignore[arg-type]


# --- completion -----------------------------------------------------------------------------------


def test_checkpoint_is_complete_once_all_tasks_acknowledged_it_and_it_is_stored() -> None:
    """CP-02"""
    job = JobWithCheckpoints()
    job.begin()
    assert job.acknowledge(1, "a0", state=state("a", "x")) == []
    assert job.acknowledge(1, "a0", state=state("a", "x")) == []
    actions = job.acknowledge(1, "b0", state=state("b", "y"))
    stored = one(actions, StoreCheckpoint)
    assert actions == [stored]
    assert stored.directory == "chk-1"
    assert [o.operator_id for o in stored.metadata.operators] == ["a", "b"]
    assert job.coordinator.latest is None, "nobody is told before it is durable"
    assert job.acknowledge(1, "b0", state=state("b", "y")) == []
    done = job.store(actions)
    notified = order(done, CheckpointCompleted)
    assert notified.order.checkpoint_id == 1
    assert notified.attempts == tuple(job.topology.attempts)
    assert job.coordinator.latest is not None
    assert job.coordinator.latest.metadata == stored.metadata
    assert job.coordinator.latest.path == "chk-1/_metadata"
    assert answers(done) == {1: "chk-1"}
    assert job.coordinator.pending_ids == ()
    assert job.coordinator.checkpoint_stored(stored, "again", 0.0) == []
    assert job.coordinator.checkpoint_not_stored(stored, "again", 0.0) == []


def test_two_concurrent_checkpoints_complete_one_after_the_other() -> None:
    """CP-07"""
    job = JobWithCheckpoints(configuration(max_concurrent=2, max_retained=2))
    job.begin()
    job.begin()
    job.complete(1)
    assert job.coordinator.pending_ids == (2,)
    job.complete(2)
    assert [c.checkpoint_id for c in job.coordinator.retained] == [1, 2]
    third = order(job.prepare(job.request()), TriggerCheckpoint)
    assert third.order.latest_completed == 2
    done = job.complete(3)
    assert subsumed(done) == [1]


def test_checkpoints_are_stored_one_at_a_time_in_the_order_of_their_completion() -> None:
    """CP-07: the checkpoint stored second is subsumed if it is the older one."""
    job = JobWithCheckpoints(CONCURRENT)
    for _ in range(3):
        job.begin()
    storing = job.acknowledge(2, "a0", "b0")
    assert one(storing, StoreCheckpoint).metadata.checkpoint_id == 2
    assert job.acknowledge(3, "a0", "b0") == []
    assert job.acknowledge(1, "a0", "b0") == []
    done = job.store(storing)
    assert aborted(done) == [1]
    assert one(done, StoreCheckpoint).metadata.checkpoint_id == 3
    assert not only(job.store(done), StoreCheckpoint)
    assert job.coordinator.pending_ids == ()


def test_later_checkpoint_that_completes_first_subsumes_the_earlier() -> None:
    """CP-04"""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.begin()
    job.acknowledge(1, "a0", state=state("a", "of 1"))
    done = job.complete(2)
    assert job.coordinator.pending_ids == ()
    assert discarded(done) == ["of 1"]
    assert answers(done) == {1: Reason.CHECKPOINT_SUBSUMED, 2: "chk-2"}
    assert [n.order.checkpoint_id for n in orders(done, CheckpointCompleted)] == [2]
    assert directories(done) == []
    late = job.acknowledge(1, "b0", state=state("b", "late"))
    assert discarded(late) == ["late"]
    assert directories(late) == ["chk-1"], "that was the last task that wrote to it"


def test_checkpoint_that_cannot_be_stored_fails_and_is_discarded() -> None:
    """CP-24"""
    job = JobWithCheckpoints(configuration(tolerable_failures=0))
    job.begin()
    job.acknowledge(1, "a0", state=state("a", "x"))
    stored = one(job.acknowledge(1, "b0"), StoreCheckpoint)
    assert job.request() == []
    actions = job.coordinator.checkpoint_not_stored(stored, "disk full", 0.0)
    assert answers(actions) == {1: Reason.FINALIZE_CHECKPOINT_FAILURE}
    assert discarded(actions) == ["x"]
    assert directories(actions) == ["chk-1"]
    assert "disk full" in one(actions, CheckpointsFailJob).text
    assert only(actions, PrepareCheckpoint)
    assert job.coordinator.latest is None


def test_acknowledged_state_of_an_operator_unknown_to_its_task_fails_the_checkpoint() -> None:
    """CP-05: the state would be lost silently."""
    job = JobWithCheckpoints()
    job.begin()
    actions = job.acknowledge(1, "a0", state=state("stranger", "x"))
    assert answers(actions) == {1: Reason.CHECKPOINT_DECLINED}
    assert "stranger" in str(actions)
    assert discarded(actions) == ["x"]


def test_checkpoint_fails_if_some_subtasks_with_union_state_have_finished() -> None:
    """CP-40"""
    job = JobWithCheckpoints(topology=Topology(2, 1))
    job.topology.vertices[0].states[0] = ExecutionState.FINISHED
    job.begin()
    union = state("a", "x")
    operator = replace(
        union.operators["a"], operator_state=(written("x", named("u", 0, mode=UNION)),)
    )
    job.acknowledge(1, "a1", state=replace(union, operators={"a": operator}))
    actions = job.acknowledge(1, "b0")
    assert answers(actions) == {1: Reason.CHECKPOINT_DECLINED_TASK_CLOSING}
    assert discarded(actions) == ["x"]


# --- declined, expired, ended ---------------------------------------------------------------------


def test_declined_checkpoint_is_discarded_with_all_received_state() -> None:
    """CP-03, CP-37"""
    job = JobWithCheckpoints(topology=Topology(1, 2), coordinators=("a",))
    job.prepare(job.request())
    job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0)
    job.acknowledge(1, "a0", state=state("a", "x", shared=["y"]))
    actions = job.decline(1, "b0")
    told = order(actions, CheckpointAborted)
    assert told.attempts == tuple(job.topology.attempts)
    assert told.coordinators == ("a",)
    assert sorted(discarded(actions)) == ["cut", "x", "y"]
    assert answers(actions) == {1: Reason.CHECKPOINT_DECLINED}
    assert "no room" in str(actions)
    assert job.coordinator.pending_ids == ()
    assert directories(actions) == []
    assert directories(job.decline(1, "b1")) == ["chk-1"]
    assert job.decline(1, "b0") == []


def test_declining_a_checkpoint_leaves_the_other_checkpoints_pending() -> None:
    """CP-03: and triggers no new checkpoint."""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.begin()
    job.acknowledge(2, "a0", state=state("a", "of 2"))
    actions = job.decline(1, "a0")
    assert aborted(actions) == [1]
    assert discarded(actions) == []
    assert not only(actions, PrepareCheckpoint)
    assert job.coordinator.pending_ids == (2,)
    done = job.complete(2)
    assert orders(done, CheckpointCompleted)
    assert job.decline(2, "a0") == []


def test_decline_by_a_past_attempt_or_another_job_is_ignored() -> None:
    """CP-03, CP-05"""
    job = JobWithCheckpoints()
    job.begin()
    past = Topology()
    past.vertices[0].attempts[0] = 9
    for job_id, attempt in ((JOB, past.attempts[0]), (OTHER_JOB, job.attempt("a0"))):
        message = DeclineCheckpoint(job_id, 1, attempt, Reason.CHECKPOINT_DECLINED)
        assert job.coordinator.declined(message, 0.0) == []
    assert job.coordinator.pending_ids == (1,)


def test_checkpoint_being_stored_cannot_be_aborted() -> None:
    """CP-24: it may be durable already."""
    job = JobWithCheckpoints()
    actions = job.request()
    job.prepare(actions)
    storing = job.acknowledge(1, "a0", "b0")
    assert job.decline(1, "a0") == []
    assert job.coordinator.timer(expiry(actions), 600.0) == []
    assert job.coordinator.tasks_ended(job.topology.attempts, is_finished=False, now=0.0) == []
    assert not aborted(job.coordinator.stop_scheduler(0.0))
    assert orders(job.store(storing), CheckpointCompleted)


def test_checkpoint_expires_if_not_completed_within_its_timeout() -> None:
    """CP-24"""
    job = JobWithCheckpoints(configuration(tolerable_failures=0))
    actions = job.request()
    job.prepare(actions)
    job.acknowledge(1, "a0", state=state("a", "x"))
    expired = job.coordinator.timer(expiry(actions), 600.0)
    assert answers(expired) == {1: Reason.CHECKPOINT_EXPIRED}
    assert "1 tasks have not acknowledged it" in str(expired)
    assert discarded(expired) == ["x"]
    assert only(expired, CheckpointsFailJob)
    assert job.coordinator.timer(expiry(actions), 600.0) == []
    assert discarded(job.acknowledge(1, "b0", state=state("b", "late"))) == ["late"]


def test_expiry_timer_of_a_completed_checkpoint_changes_nothing() -> None:
    """CP-24"""
    job = JobWithCheckpoints()
    actions = job.request()
    job.prepare(actions)
    job.complete(1)
    job.begin()
    assert job.coordinator.timer(expiry(actions), 600.0) == []
    assert job.coordinator.pending_ids == (2,)


@pytest.mark.parametrize("is_finished", [True, False])
def test_checkpoint_fails_when_a_task_ends_before_its_acknowledgement(is_finished: bool) -> None:
    """CP-01"""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.begin()
    job.acknowledge(1, "a0", state=state("a", "x"))
    actions = job.coordinator.tasks_ended([job.attempt("a0")], is_finished=is_finished, now=0.0)
    reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING if is_finished else Reason.TASK_FAILURE
    assert answers(actions) == {2: reason}
    assert job.coordinator.pending_ids == (1,)
    ended = job.coordinator.tasks_ended([job.attempt("b0")], is_finished=is_finished, now=0.0)
    assert answers(ended) == {1: reason}
    assert discarded(ended) == ["x"]
    assert sorted(directories(ended)) == ["chk-1", "chk-2"]


def test_more_failed_checkpoints_in_a_row_than_tolerated_fail_the_job() -> None:
    """CP-23"""
    job = JobWithCheckpoints(configuration(tolerable_failures=1))
    job.begin()
    assert not only(job.decline(1, "a0"), CheckpointsFailJob)
    job.begin()
    job.complete(2)
    for checkpoint_id, is_failed in ((3, False), (4, True)):
        job.begin()
        assert bool(only(job.decline(checkpoint_id, "a0"), CheckpointsFailJob)) is is_failed


# --- late and unknown -----------------------------------------------------------------------------


def test_late_acknowledged_state_is_discarded_unless_it_is_state_of_another_job() -> None:
    """CP-05"""
    job = JobWithCheckpoints()
    job.begin()
    stranger = Topology()
    stranger.vertices[0].attempts[0] = 9

    def told(checkpoint_id: int, attempt: object, *, job_id: object = JOB) -> list[str]:
        message = AcknowledgeCheckpoint(job_id, checkpoint_id, attempt, state("a", "x"))  # type: ignore[arg-type]
        return discarded(job.coordinator.acknowledged(message, 0.0))

    assert told(1, stranger.attempts[0]) == ["x"], "an unknown task"
    assert told(7, job.attempt("a0")) == ["x"], "an unknown checkpoint"
    assert told(1, job.attempt("a0"), job_id=OTHER_JOB) == []
    assert told(7, job.attempt("a0"), job_id=OTHER_JOB) == []
    assert told(1, job.attempt("a0")) == [], "a known task"
    assert told(1, job.attempt("a0")) == [], "a duplicate"
    assert discarded(job.decline(1, "b0")) == ["x"]
    assert told(1, stranger.attempts[0]) == ["x"], "after it has failed"


def test_repeated_decline_does_not_discard_state_again() -> None:
    """CP-05"""
    job = JobWithCheckpoints()
    job.begin()
    job.acknowledge(1, "a0", state=state("a", "x"))
    assert discarded(job.decline(1, "b0")) == ["x"]
    assert directories(job.decline(1, "b0")) == []


def test_repeated_acknowledgement_deletes_no_file_of_a_completed_checkpoint() -> None:
    """CP-05: files that the repeated message names and the checkpoint does not have are deleted."""
    job = JobWithCheckpoints(coordinators=("a",))
    job.prepare(job.request())
    job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0)
    job.complete(1, state("a", "x", shared=["y"]))
    assert job.acknowledge(1, "a0", state=state("a", "x", shared=["y"])) == []
    assert discarded(job.acknowledge(1, "b0", state=state("b", "x", "z"))) == ["z"]
    assert job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0) == []


def test_repeated_acknowledgement_deletes_no_file_of_a_savepoint() -> None:
    """CP-05: also not of a savepoint of an earlier JobMaster."""
    job = JobWithCheckpoints(coordinators=("a",))
    job.prepare(job.request(SAVEPOINT))
    job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0)
    job.complete(1, state("a", "x"))
    assert job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0) == []
    for checkpoint_id in (1, 7):
        message = AcknowledgeCheckpoint(
            JOB, checkpoint_id, job.attempt("a0"), state("a", "x"), is_savepoint=True
        )
        assert job.coordinator.acknowledged(message, 0.0) == []


def test_repeated_acknowledgement_after_a_take_over_deletes_no_file_of_a_savepoint() -> None:
    """The earlier JobMaster has completed the savepoint. The next one has aborted everything that
    was pending."""
    before = JobWithCheckpoints(coordinators=("a",))
    before.prepare(before.request(SAVEPOINT))
    before.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0)
    message = AcknowledgeCheckpoint(
        JOB, 1, before.attempt("b0"), state("b", "x", shared=["y"]), is_savepoint=True
    )
    before.acknowledge(1, "a0")
    assert answers(before.store(before.coordinator.acknowledged(message, 0.0))) == {1: "chk-1"}

    job = JobWithCheckpoints(coordinators=("a",))
    job.coordinator.take_over(0, {1: "/job/chk-1"}, job.topology.attempts, 0.0)
    assert discarded(job.coordinator.acknowledged(message, 0.0)) == []
    assert job.coordinator.coordinator_acknowledged(1, "a", file("cut"), 0.0) == []
    job.prepare(job.request(), 2)
    assert discarded(job.coordinator.acknowledged(message, 0.0)) == []


def test_directory_of_a_failed_checkpoint_stays_while_a_task_may_still_write_into_it() -> None:
    """The request to trigger the task was not answered in time."""
    job = JobWithCheckpoints()
    job.begin()
    job.acknowledge(1, "a0")
    reason = Reason.CHECKPOINT_DECLINED_TASK_NOT_READY
    message = DeclineCheckpoint(JOB, 1, job.attempt("b0"), reason, "timed out", may_write=True)
    actions = job.coordinator.declined(message, 0.0)
    assert answers(actions) == {1: reason}
    assert directories(actions) == []
    assert discarded(job.acknowledge(1, "b0", state=state("b", "late"))) == ["late"]
    job.begin()
    late = DeclineCheckpoint(JOB, 2, job.attempt("b0"), reason, "timed out", may_write=True)
    assert directories(job.coordinator.declined(late, 0.0)) == []
    assert directories(job.decline(2, "b0")) == []
    assert directories(job.acknowledge(2, "a0")) == ["chk-2"]


def test_state_written_by_a_lost_task_for_an_aborted_savepoint_is_discarded() -> None:
    """Only this coordinator knows the files that the lost task still wrote."""
    job = JobWithCheckpoints()
    job.begin(SAVEPOINT)
    lost = job.attempt("b0")
    job.coordinator.tasks_ended([lost], is_finished=False, now=0.0)
    late = AcknowledgeCheckpoint(JOB, 1, lost, state("b", "late"), is_savepoint=True)
    assert discarded(job.coordinator.acknowledged(late, 0.0)) == ["late"]


def test_failed_checkpoint_keeps_files_shared_with_completed_ones() -> None:
    """CP-38"""
    job = JobWithCheckpoints()
    job.begin()
    job.complete(1, state("a", shared=["whole"]))
    job.begin()
    job.acknowledge(2, "a0", state=state("a", "own", shared=["whole", "change"]))
    assert sorted(discarded(job.decline(2, "b0"))) == ["change", "own"]


def test_failed_checkpoint_with_inline_state_discards_no_files() -> None:
    """CP-05"""
    job = JobWithCheckpoints(coordinators=("a",))
    job.prepare(job.request())
    job.coordinator.coordinator_acknowledged(1, "a", InlineState(b"x"), 0.0)
    assert discarded(job.decline(1, "a0")) == []


# --- shared files ---------------------------------------------------------------------------------


def test_shared_file_is_deleted_once_no_retained_checkpoint_refers_to_it() -> None:
    """CP-38"""
    job = JobWithCheckpoints()
    for checkpoint_id, shared in ((1, ["w1"]), (2, ["w1", "c2"]), (3, ["w3"])):
        job.begin()
        done = job.complete(checkpoint_id, state("a", shared=shared))
    assert subsumed(done) == [2]
    assert discarded(done) == ["w1", "c2"]


def test_shared_file_stays_while_a_pending_checkpoint_may_refer_to_it() -> None:
    """CP-38"""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.complete(1, state("a", shared=["w1"]))
    job.begin()
    job.begin()
    done = job.complete(2, state("a", shared=["w2"]))
    assert subsumed(done) == [1]
    assert discarded(done) == [], "3 was triggered when 1 was the latest"
    job.acknowledge(3, "a0", state=state("a", shared=["w1", "c3"]))
    assert sorted(discarded(job.decline(3, "b0"))) == ["c3", "w1"]


def test_shared_file_stays_with_a_later_checkpoint_that_refers_to_it() -> None:
    """CP-38"""
    job = JobWithCheckpoints(CONCURRENT)
    for checkpoint_id in (1, 2, 3):
        job.begin()
        if checkpoint_id == 1:
            job.complete(1, state("a", shared=["w1"]))
    job.complete(2, state("a", shared=["w2"]))
    done = job.complete(3, state("a", shared=["w1", "c3"]))
    assert discarded(done) == ["w2"]
    job.begin()
    assert discarded(job.complete(4)) == ["w1", "c3"]


# --- savepoints -----------------------------------------------------------------------------------


def test_savepoint_completes_with_its_last_acknowledgement_but_commits_nothing() -> None:
    """CP-19: no transactions are committed with a savepoint, and the job does not restore it, as
    since Flink 1.15. Its tasks write all of their state."""
    job = JobWithCheckpoints()
    triggered = order(job.prepare(job.request(SAVEPOINT)), TriggerCheckpoint)
    assert triggered.order.is_whole
    assert answers(job.acknowledge(1, "a0")) == {}
    done = job.complete(1)
    assert answers(done) == {1: "chk-1"}
    assert not orders(done, CheckpointCompleted)
    assert job.coordinator.latest is None


def test_later_checkpoints_subsume_neither_pending_nor_completed_savepoints() -> None:
    """CP-18, CP-19"""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.begin(SAVEPOINT)
    job.begin(SAVEPOINT)
    job.begin()
    done = job.complete(4)
    assert aborted(done) == [1]
    assert list(job.coordinator.pending_ids) == [2, 3]
    done = job.complete(3)
    assert aborted(done) == []
    assert list(job.coordinator.pending_ids) == [2]
    assert answers(job.complete(2)) == {2: "chk-2"}
    job.begin()
    assert subsumed(job.complete(5)) == [4]


def test_savepoint_of_a_stop_subsumes_checkpoints_and_is_the_latest_checkpoint() -> None:
    """CP-18, CP-20: its transactions are committed."""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.complete(1)
    job.begin()
    job.begin(SAVEPOINT)
    job.begin(STOP)
    done = job.complete(4)
    assert aborted(done) == [2]
    assert subsumed(done) == [1]
    assert order(done, CheckpointCompleted).order.checkpoint_id == 4
    assert job.coordinator.latest is not None
    assert job.coordinator.latest.checkpoint_id == 4
    ended = job.coordinator.job_status_changed(JobStatus.FINISHED, 0.0)
    assert subsumed(ended) == []


def test_subsumed_savepoint_that_the_job_was_restored_from_is_not_deleted() -> None:
    """CP-18, CP-29"""
    job = JobWithCheckpoints()
    job.begin(STOP)
    job.complete(1, state("a", shared=["s"]))
    job.coordinator.prepare_restore("a task failed", 0.0, is_global=True)
    job.coordinator.restore(job.vertices, job.all_tasks, is_global=True)
    assert order(job.prepare(job.request()), TriggerCheckpoint).order.is_whole, (
        "its files are the user's"
    )
    done = job.complete(2, state("a", shared=["w"]))
    assert one(done, ForgetCheckpoint).checkpoint.checkpoint_id == 1
    assert subsumed(done) == []
    assert discarded(done) == []
    assert not order(job.prepare(job.request()), TriggerCheckpoint).order.is_whole


def test_a_declined_stop_with_savepoint_fails_the_job() -> None:
    """CP-20: once, with the cause; the tasks do not run on."""
    job = JobWithCheckpoints()
    job.begin(STOP)
    actions = job.decline(1, "a0")
    assert answers(actions) == {1: Reason.CHECKPOINT_DECLINED}
    failure = one(actions, CheckpointsFailJob)
    assert "no room" in failure.text
    assert failure.error.reason is Reason.CHECKPOINT_DECLINED
    assert job.decline(1, "b0") != actions
    assert only(job.request(), PrepareCheckpoint)


def test_declined_savepoint_that_does_not_stop_the_job_does_not_fail_it() -> None:
    """CP-20"""
    job = JobWithCheckpoints(configuration(tolerable_failures=0))
    job.begin(SAVEPOINT)
    assert not only(job.decline(1, "a0"), CheckpointsFailJob)


# --- the end of the job ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "is_discarded"),
    [
        (JobStatus.FINISHED, True),
        (JobStatus.CANCELED, True),
        (JobStatus.FAILED, False),
        (JobStatus.SUSPENDED, False),
    ],
)
def test_job_end_aborts_pending_and_discards_completed_checkpoints_by_job_status(
    status: JobStatus, is_discarded: bool
) -> None:
    """CP-33, CP-29"""
    retention = CheckpointRetentionPolicy.RETAIN_ON_FAILURE
    job = JobWithCheckpoints(configuration(retention=retention, max_concurrent=2))
    for checkpoint_id in (1, 2):
        job.prepare(job.request())
        if checkpoint_id == 1:
            job.complete(1, state("a", shared=["w1"]))
    job.acknowledge(2, "a0", state=state("a", "x"))
    waits = job.request()
    assert only(waits, PrepareCheckpoint)
    actions = job.coordinator.job_status_changed(status, 0.0)
    shut_down = Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert answers(actions) == {2: shut_down, 3: shut_down}
    assert subsumed(actions) == ([1] if is_discarded else [])
    assert sorted(discarded(actions)) == (["w1", "x"] if is_discarded else ["x"])
    assert directories(actions) == ["chk-2"]
    assert one(actions, CloseCheckpointStores).status is status
    repeated = job.acknowledge(1, "a0", state=state("a", shared=["w1"]))
    assert is_discarded or repeated == [], "what is kept stays whole"
    assert not only(actions, CheckpointsFailJob)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.SUSPENDED])
def test_checkpoint_stores_close_at_job_end_only_once_a_pending_store_has_ended(
    status: JobStatus, is_stored: bool
) -> None:
    """CP-33: the checkpoint is discarded like the others, or kept if the job is suspended."""
    job = JobWithCheckpoints(configuration(tolerable_failures=0))
    job.begin()
    job.acknowledge(1, "a0", state=state("a", "x", shared=["w"]))
    stored = one(job.acknowledge(1, "b0"), StoreCheckpoint)
    ended = job.coordinator.shutdown(status, 0.0)
    assert not only(ended, CloseCheckpointStores)
    assert job.coordinator.is_storing
    if is_stored:
        actions = job.coordinator.checkpoint_stored(stored, "p", 0.0)
        assert answers(actions) == {1: "chk-1"}
        is_discarded = status is JobStatus.FINISHED
        assert subsumed(actions) == ([1] if is_discarded else [])
        assert discarded(actions) == (["w"] if is_discarded else [])
    else:
        actions = job.coordinator.checkpoint_not_stored(stored, "disk full", 0.0)
        assert sorted(discarded(actions)) == ["w", "x"]
        assert not only(actions, CheckpointsFailJob)
    assert one(actions, CloseCheckpointStores).status is status
    assert not orders(actions, CheckpointCompleted), "no task is left"
    assert not orders(actions, CheckpointAborted), "no task is left"
    if is_stored and status is JobStatus.SUSPENDED:
        assert job.acknowledge(1, "a0", state=state("a", "x", shared=["w"])) == []


def test_file_used_by_a_checkpoint_being_stored_at_job_end_is_deleted_afterwards() -> None:
    """CP-33, CP-38"""
    job = JobWithCheckpoints()
    job.begin()
    job.complete(1, state("a", shared=["w1"]))
    job.begin()
    storing = job.acknowledge(2, "a0", "b0")
    assert discarded(job.coordinator.shutdown(JobStatus.FINISHED, 0.0)) == []
    assert discarded(job.store(storing)) == ["w1"]


# --- what people are told -------------------------------------------------------------------------


def test_checkpoint_overview_has_counts_sizes_and_latest_checkpoint_of_each_kind() -> None:
    """CP-02"""
    job = JobWithCheckpoints(CONCURRENT)
    job.begin()
    job.complete(1, state("a", "x", shared=["w1"]))
    job.now = 10.0
    job.begin()
    job.begin(SAVEPOINT)
    job.begin()
    job.acknowledge(4, "a0")
    job.now = 12.5
    job.complete(2, state("a", "y", shared=["w1", "c2"]))
    job.complete(3, state("a", "s"))
    job.decline(4, "b0")
    job.begin()
    job.acknowledge(5, "a0")
    told = job.coordinator.overview()
    assert (told.in_progress, told.completed, told.failed, told.restored) == (1, 3, 1, 0)
    completed, saved, failed = told.latest_completed, told.latest_savepoint, told.latest_failed
    assert completed is not None
    assert saved is not None
    assert failed is not None
    assert (completed.checkpoint_id, completed.duration) == (2, 2.5)
    assert (completed.state_size, completed.checkpointed_size) == (3, 2)
    assert (completed.path, completed.timestamp) == ("chk-2/_metadata", 1_010_000)
    assert (saved.checkpoint_id, saved.is_savepoint, saved.state_size) == (3, True, 1)
    assert (failed.checkpoint_id, failed.acknowledged_subtasks) == (4, 1)
    assert failed.number_of_subtasks == 2
    assert failed.failure is not None
    assert "no room" in failed.failure
    assert [each.checkpoint_id for each in told.history] == [5, 4, 3, 2, 1]
    assert told.history[0].duration is None
    assert told.history[0].acknowledged_subtasks == 1


def test_checkpoint_overview_has_the_last_ten_ended_checkpoints() -> None:
    """CP-02"""
    job = JobWithCheckpoints()
    for checkpoint_id in range(1, 13):
        job.begin()
        job.complete(checkpoint_id)
    told = job.coordinator.overview()
    assert told.completed == 12
    assert [each.checkpoint_id for each in told.history] == list(range(12, 2, -1))


def test_checkpoint_overview_has_paths_of_existing_checkpoints_only() -> None:
    """CP-02"""
    job = JobWithCheckpoints(CONCURRENT)
    for checkpoint_id in (1, 2):
        job.begin()
        job.complete(checkpoint_id)
    told = job.coordinator.overview()
    assert told.latest_completed is not None
    assert told.latest_completed.path == "chk-2/_metadata"
    assert [each.path for each in told.history] == ["chk-2/_metadata", None]
    job.coordinator.shutdown(JobStatus.FINISHED, 0.0)
    told = job.coordinator.overview()
    assert told.latest_completed is not None
    assert told.latest_completed.checkpoint_id == 2
    assert [told.latest_completed.path, *(each.path for each in told.history)] == [None] * 3


def test_checkpoint_overview_hides_secrets_in_paths() -> None:
    job = JobWithCheckpoints()
    job.begin()
    acknowledged = [
        AcknowledgeCheckpoint(JOB, 1, attempt, None) for attempt in job.topology.attempts
    ]
    actions = [a for each in acknowledged for a in job.coordinator.acknowledged(each, job.now)]
    (wanted,) = only(actions, StoreCheckpoint)
    path = "s3://key:a-secret@bucket/chk-1/_metadata?region=us-east-1"
    job.coordinator.checkpoint_stored(wanted, path, job.now)
    told = job.coordinator.overview().latest_completed
    assert told is not None
    assert told.path == "s3://key@bucket/chk-1/_metadata"
