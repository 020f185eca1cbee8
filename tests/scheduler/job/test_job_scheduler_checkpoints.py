"""JobScheduler: checkpoints of a job that runs, and what its tasks begin with after a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.checkpoint.handles import InlineState, OperatorSubtaskState
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.scheduler.checkpoints.actions import (
    AddRestoredSavepoint,
    CloseCheckpointStores,
    DiscardCheckpoint,
    DiscardDirectory,
    DiscardFiles,
    OrderCheckpoint,
    OrderCoordinators,
    PrepareCheckpoint,
    ResetSubtasks,
    RestoreCoordinators,
    SnapshotCoordinators,
    SnapshotFinished,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import (
    CheckpointIsNotStored,
    SavepointGiven,
    SnapshotRequested,
)
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason, StopWithSavepointError
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    PickledState,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.graph.job_graph import MASTER_HOOK, STREAM, Invokable, JobVertex
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler_actions import (
    DeployTasks,
    JobEnded,
    NoteFinished,
    StartCoordinator,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.tasks import JobInformation, TaskExecutionState, VertexInformation
from flinkray.scheduler.shared.transition import JobEvent, StartTimer
from tests.scheduler.builders import JOB, OTHER_JOB, one, only, spark_vertex
from tests.scheduler.checkpoints import checkpointed
from tests.scheduler.graphs import stream_vertex
from tests.scheduler.job.checkpointed_job import (
    EVERY_MINUTE,
    CheckpointedJob,
    checkpointed_graph,
)
from tests.scheduler.job.job_under_test import driver
from tests.scheduler.tasks_under_test import stream

Reason = CheckpointFailureReason
CHECKPOINT = CheckpointProperties(SnapshotKind.CHECKPOINT)
UNALIGNED = replace(EVERY_MINUTE, is_unaligned=True)
SOURCES = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, 0)


def running(vertices: tuple[JobVertex, ...] = (), **arguments: object) -> CheckpointedJob:
    tasks = CheckpointedJob(checkpointed_graph(*vertices, **arguments))  # type: ignore[arg-type]
    tasks.run()
    return tasks


def two_pipelines() -> CheckpointedJob:
    """``a1 --> b1`` and ``a2 --> b2`` are regions of their own."""
    return running(edges=["a --> b"])


# --- taking them ----------------------------------------------------------------------------------


def test_checkpoint_triggers_coordinators_then_sources_and_is_reported_to_all_tasks() -> None:
    """CP-02, CP-32"""
    tasks = running()
    actions = tasks.prepare(tasks.tick())
    asked = one(actions, SnapshotCoordinators)
    assert (asked.checkpoint_id, asked.operators, asked.directory) == (1, ("a",), "/chk-1")
    assert only(actions, OrderCheckpoint) == []
    (to_a1, a1), (to_a2, a2) = tasks.orders(tasks.cut(actions))
    assert (a1, a2) == ("a1#0 on te0", "a2#0 on te1")
    assert isinstance(to_a1, TriggerCheckpoint)
    assert to_a1 == to_a2
    assert (to_a1.checkpoint_id, to_a1.directory, to_a1.latest_completed) == (1, "/chk-1", 0)
    assert (to_a1.properties, to_a1.is_whole) == (CHECKPOINT, False)
    assert only(tasks.acknowledge(1, "a1 a2 b1"), StoreCheckpoint) == []
    stored = one(tasks.acknowledge(1, "b2"), StoreCheckpoint)
    assert [o.coordinator for o in stored.metadata.operators] == [InlineState(b"a at 1"), None]
    actions = tasks.store()
    assert tasks.orders(actions) == [
        (CheckpointCompleted(1), "a1#0 b1#0 on te0"),
        (CheckpointCompleted(1), "a2#0 b2#0 on te1"),
    ]
    assert one(actions, OrderCoordinators) == OrderCoordinators(("a",), CheckpointCompleted(1))


def test_tasks_of_a_task_executor_get_one_checkpoint_message() -> None:
    tasks = CheckpointedJob(slots_each=2)
    tasks.run()
    assert [who for _, who in tasks.orders(tasks.trigger())] == ["a1#0 a2#0 on te0"]
    tasks.acknowledge(1)
    assert [who for _, who in tasks.orders(tasks.store())] == ["a1#0 a2#0 b1#0 b2#0 on te0"]


@pytest.mark.parametrize(
    ("checkpoints", "properties", "expected"),
    [
        (EVERY_MINUTE, None, (False, None, False)),
        (UNALIGNED, None, (True, None, False)),
        (replace(UNALIGNED, alignment_timeout=2.0), None, (False, 2.0, False)),
        (replace(EVERY_MINUTE, alignment_timeout=2.0), None, (False, None, False)),
        (UNALIGNED, savepoint(), (False, None, True)),
        (replace(UNALIGNED, alignment_timeout=2.0), savepoint(), (False, None, True)),
        (replace(EVERY_MINUTE, is_incremental=False), None, (False, None, True)),
    ],
)
def test_barriers_are_unaligned_if_configured_but_never_for_savepoints(
    checkpoints: CheckpointConfiguration,
    properties: CheckpointProperties | None,
    expected: tuple[bool, float | None, bool],
) -> None:
    tasks = running(checkpoints=checkpoints)
    order, _ = tasks.orders(tasks.trigger(properties))[0]
    assert isinstance(order, TriggerCheckpoint)
    assert (order.is_unaligned, order.alignment_timeout, order.is_whole) == expected


def test_no_checkpoint_is_triggered_while_a_task_is_not_running() -> None:
    """CP-01"""
    tasks = CheckpointedJob()
    tasks.tell(t.StartJob())
    tasks.give()
    tasks.report("a1 a2 b1", ExecutionState.RUNNING)
    error = one(tasks.request(), SnapshotFinished).error
    assert error is not None
    assert error.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert only(tasks.tick(), PrepareCheckpoint) == []
    tasks.report("b2", ExecutionState.RUNNING)
    assert only(tasks.tick(), PrepareCheckpoint) != []


def test_acknowledgement_reported_before_the_end_of_its_task_in_one_message_counts() -> None:
    """The task had written its state."""
    tasks = running()
    tasks.trigger()
    tasks.acknowledge(1, "a1 b1 b2")
    finished = TaskExecutionState(JOB, tasks.attempt("a2"), ExecutionState.FINISHED)
    reported = t.TasksReported((*tasks.acknowledgements(1, "a2"), finished))
    assert only(tasks.tell(reported), StoreCheckpoint) != []


def test_task_that_ends_before_it_acknowledges_aborts_the_checkpoint() -> None:
    tasks = running()
    tasks.trigger()
    finished = TaskExecutionState(JOB, tasks.attempt("a2"), ExecutionState.FINISHED)
    actions = tasks.tell(
        t.TasksReported(
            (
                finished,
                *tasks.acknowledgements(1, "a2"),
            )
        )
    )
    assert tasks.orders(actions) == [
        (CheckpointAborted(1, 0), "a1#0 b1#0 on te0"),
        (CheckpointAborted(1, 0), "b2#0 on te1"),
    ]
    assert one(actions, OrderCoordinators) == OrderCoordinators(("a",), CheckpointAborted(1, 0))
    error = one(actions, SnapshotFinished).error
    assert error is not None
    assert error.reason is Reason.CHECKPOINT_DECLINED_TASK_CLOSING
    assert tasks.status is JobStatus.RUNNING


def test_checkpoint_being_prepared_does_not_wait_for_a_task_that_finishes_meanwhile() -> None:
    """Otherwise the checkpoint would wait for the task until it expires."""
    tasks = running()
    prepare = tasks.request()
    answer = one(tasks.finish("a2"), SnapshotFinished)
    assert answer.error is not None
    assert answer.error.reason is Reason.CHECKPOINT_DECLINED_TASK_CLOSING
    assert one(tasks.prepare(prepare), DiscardDirectory).directory == "/chk-1"
    assert [who for _, who in tasks.orders(tasks.trigger())] == ["a1#0 on te0"]


def test_finished_task_is_finished_in_the_checkpoint_and_after_a_restore() -> None:
    tasks = two_pipelines()
    tasks.finish("a1 a2")
    assert [who[:4] for _, who in tasks.orders(tasks.trigger())] == ["b1#0", "b2#0"]
    tasks.acknowledge(1)
    tasks.store()
    tasks.fail("b1")
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1"
    assert tasks.restored() == {"a1": "1: finished", "b1": "1:/chk-1/b1", "b2": "anew"}


def test_checkpoint_is_triggered_at_tasks_without_running_producers() -> None:
    """At sources, and behind tasks that have finished."""
    tasks = running(
        vertices=(stream_vertex("a", 2), stream_vertex("b", 2), stream_vertex("c", 2)),
        edges=["a --> b", "b --> c"],
    )
    tasks.finish("a1")
    assert [who[:4] for _, who in tasks.orders(tasks.trigger())] == ["a2#0", "b1#0"]


def test_more_failed_checkpoints_than_tolerated_restart_the_job() -> None:
    tasks = running(checkpoints=CheckpointConfiguration())
    tasks.trigger()
    actions = tasks.decline(1, "b1")
    assert tasks.status is JobStatus.RESTARTING
    assert sorted(tasks.cancelled(actions).split()) == ["a1#0", "a2#0", "b1#0", "b2#0"]
    assert "more than 0 checkpoints in a row failed" in tasks.scheduler.exceptions()[0].text


def test_snapshot_request_to_a_job_without_checkpoints_fails_with_that_reason() -> None:
    tasks = stream(a=1).run()
    assert not tasks.scheduler.takes_checkpoints
    assert tasks.scheduler.details().checkpoints is None
    actions = tasks.tell(SnapshotRequested(7, None))
    finished = one(actions, SnapshotFinished)
    assert finished.request_id == 7
    assert "the job takes none" in str(finished.error)
    assert tasks.fail("a1")
    assert all(d.restored is None and d.restores == 0 for d in tasks.tasks.values())


def test_savepoint_with_state_of_operators_without_uid_adds_a_warning_to_the_details() -> None:
    tasks = running()
    tasks.take()
    assert tasks.scheduler.details().warnings == ()
    tasks.take(savepoint())
    (warning,) = tasks.scheduler.details().warnings
    assert warning.startswith("the last savepoint has state of operators without a uid: ")
    assert "'b'" in warning
    assert tasks.scheduler.progress().warnings == (warning,)
    tasks.take(savepoint())
    assert tasks.scheduler.details().warnings == (warning,)


def test_pickled_state_adds_one_warning_per_operator_to_the_job_details() -> None:
    tasks = running()
    tasks.trigger()
    pickled = (PickledState("b", "seen", ("job.Local", "job.Other")),)
    answers = tasks.acknowledgements(tasks.last_id, "b1 b2")
    for answer in answers:
        tasks.tell(t.TasksReported((replace(answer, pickled=pickled),)))
    (warning,) = tasks.scheduler.details().warnings
    assert warning.startswith("state 'seen' of operator 'b'")
    assert "values of job.Local, job.Other, which are pickled" in warning
    assert tasks.scheduler.progress().warnings == (warning,)


def test_job_details_have_the_checkpoint_overview() -> None:
    tasks = running()
    tasks.take()
    tasks.trigger()
    assert tasks.scheduler.takes_checkpoints
    overview = tasks.scheduler.details().checkpoints
    assert overview is not None
    assert (overview.completed, overview.in_progress) == (1, 1)


# --- restarts -------------------------------------------------------------------------------------


def test_restarted_region_and_its_source_readers_restore_the_last_checkpoint() -> None:
    """EX-16, EX-07"""
    tasks = two_pipelines()
    tasks.take()
    tasks.take()
    tasks.fail("b2")
    actions = tasks.restart()
    assert tasks.deployed(actions) == "a2#1 b2#1"
    assert tasks.restored() == {
        "a1": "anew",
        "a2": "2:/chk-2/a2",
        "b1": "anew",
        "b2": "2:/chk-2/b2",
    }
    assert one(tasks.log, ResetSubtasks) == ResetSubtasks(2, {"a": ((1, 1),)})
    assert only(tasks.log, RestoreCoordinators) == []
    assert {task.restores for task in tasks.tasks.values()} == {0}
    execution = tasks.scheduler._graph.find(tasks.attempt("a2"))
    assert execution is not None
    assert execution.restored is None


def test_task_failure_restores_the_whole_job_if_a_source_has_a_master_hook() -> None:
    """EX-16"""
    hooked = Invokable(STREAM, b"a", {MASTER_HOOK: "true"})
    vertices = (stream_vertex("a", 2, invokable=hooked), stream_vertex("b", 2))
    tasks = running(vertices, edges=["a --> b"])
    tasks.take()
    tasks.fail("b2")
    assert tasks.deployed(tasks.restart()) == "a1#1 b1#1 a2#1 b2#1"
    restore = one(tasks.log, RestoreCoordinators)
    assert restore == RestoreCoordinators(1, {"a": InlineState(b"a at 1")}, 1)
    tasks.tell(t.CancelJob())
    tasks.fail("a1")
    assert tasks.status is JobStatus.CANCELLING


def test_region_that_fails_before_the_first_checkpoint_starts_without_state() -> None:
    tasks = two_pipelines()
    tasks.fail("b2")
    tasks.restart()
    assert one(tasks.log, ResetSubtasks) == ResetSubtasks(0, {"a": ((1, 1),)})
    assert set(tasks.restored().values()) == {"anew"}


def test_global_failure_restores_all_tasks_and_the_source_coordinators() -> None:
    """EX-16"""
    tasks = two_pipelines()
    tasks.take()
    tasks.tell(t.GlobalFailure(Failure("all")))
    tasks.restart()
    assert set(tasks.restored().values()) == {f"1:/chk-1/{n}" for n in ("a1", "a2", "b1", "b2")}
    restore = one(tasks.log, RestoreCoordinators)
    assert restore == RestoreCoordinators(1, {"a": InlineState(b"a at 1")}, 1)
    assert {task.restores for task in tasks.tasks.values()} == {1}
    assert only(tasks.log, ResetSubtasks) == []
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    tasks.fail("a1")
    tasks.restart()
    assert one(tasks.log, ResetSubtasks) == ResetSubtasks(1, {"a": ((0, 2),)})
    assert {task.restores for task in tasks.tasks.values()} == {1}


def test_global_failure_before_the_first_checkpoint_resets_the_coordinators() -> None:
    tasks = two_pipelines()
    tasks.tell(t.GlobalFailure(Failure("all")))
    tasks.restart()
    assert one(tasks.log, RestoreCoordinators) == RestoreCoordinators(None, {"a": None}, 1)
    assert set(tasks.restored().values()) == {"anew"}
    assert {task.restores for task in tasks.tasks.values()} == {1}


def test_dead_coordinator_is_restored_with_all_tasks_before_its_start() -> None:
    tasks = two_pipelines()
    tasks.tell(t.CoordinatorStarted(SOURCES))
    tasks.take()
    tasks.tell(t.CoordinatorGone(SOURCES, "killed"))
    actions = tasks.restart()
    kinds = [type(a) for a in actions]
    assert kinds.index(RestoreCoordinators) < kinds.index(StartCoordinator)
    assert set(tasks.restored()) == {"a1", "a2", "b1", "b2"}


def test_coordinators_are_restored_once_although_several_restarts_are_pending() -> None:
    """The pending restart of a region is done together with the global restart."""
    tasks = two_pipelines()
    tasks.take()
    tasks.fail("b1")
    tasks.tell(t.GlobalFailure(Failure("all")))
    tasks.confirm_cancellations()
    for timer in only(tasks.log, StartTimer):
        tasks.tell(timer.event)
    tasks.give()
    assert one(tasks.log, RestoreCoordinators).restores == 1
    assert only(tasks.log, ResetSubtasks) == []
    assert {(task.restores, task.attempt_number) for task in tasks.tasks.values()} == {(1, 1)}


def with_a_spark_stage() -> CheckpointedJob:
    """``s1`` and ``s2`` are its executors; no edge leads from it to the streams."""
    stage = replace(spark_vertex(name="s"), slot_sharing_group="spark")
    tasks = running((stage, stream_vertex("a", 2), stream_vertex("b", 2)))
    tasks.tell(t.CoordinatorStarted(driver()))
    return tasks


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_spark_stage_whose_driver_dies_restarts_and_the_streams_keep_running(
    checkpoints: int,
) -> None:
    tasks = with_a_spark_stage()
    for number in range(checkpoints):
        tasks.trigger()
        tasks.acknowledge(number + 1, "a1 a2 b1 b2")
        tasks.store()
    tasks.tell(t.CoordinatorGone(driver(), "killed"))
    assert tasks.deployed(tasks.restart()) == "s1#1 s2#1"
    assert only(tasks.log, RestoreCoordinators) == []
    assert only(tasks.log, ResetSubtasks) == []
    assert set(tasks.restored().values()) == {"anew"}


def test_global_failure_restores_streams_beside_a_spark_stage() -> None:
    tasks = with_a_spark_stage()
    tasks.trigger()
    tasks.acknowledge(1, "a1 a2 b1 b2")
    tasks.store()
    tasks.tell(t.GlobalFailure(Failure("all")))
    tasks.tell(t.CoordinatorGone(driver()))
    tasks.restart()
    of_streams = {name: f"1:/chk-1/{name}" for name in ("a1", "a2", "b1", "b2")}
    assert tasks.restored() == {"s1": "anew", "s2": "anew", **of_streams}
    assert one(tasks.log, RestoreCoordinators).restores == 1
    started = only(tasks.log, StartCoordinator)
    drivers = [action for action in started if action.coordinator in (driver(), driver(1))]
    assert [action.restores for action in drivers] == [0, 1], "as the streams have it"
    assert {task.restores for task in tasks.tasks.values()} == {1}
    assert {action.graph_id for action in drivers} == {tasks.attempt("a1").graph_id}


def test_failure_aborts_the_pending_checkpoint_and_none_begins_until_all_tasks_run() -> None:
    """EX-16"""
    tasks = two_pipelines()
    tasks.trigger()
    actions = tasks.fail("b2")
    assert tasks.orders(actions) == [
        (CheckpointAborted(1, 0), "a1#0 b1#0 on te0"),
        (CheckpointAborted(1, 0), "a2#0 on te1"),
    ]
    for _ in range(2):
        error = one(tasks.request(), SnapshotFinished).error
        assert error is not None
        assert error.reason is Reason.JOB_FAILOVER_REGION
    tasks.restart()
    error = one(tasks.request(), SnapshotFinished).error
    assert error is not None
    assert error.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    tasks.take()
    assert tasks.scheduler.details().checkpoints.completed == 1  # type: ignore[union-attr]


def test_aborted_checkpoints_directory_is_deleted_after_its_last_writer_has_ended() -> None:
    tasks = two_pipelines()
    tasks.trigger()
    tasks.fail("b2")
    tasks.decline(1, "a1")
    tasks.decline(1, "b1")
    assert only(tasks.log, DiscardDirectory) == []
    assert one(tasks.confirm_cancellations(), DiscardDirectory).directory == "/chk-1"


def test_restart_waits_for_the_outcome_of_a_checkpoint_being_stored() -> None:
    """If tasks restored the checkpoint before, they would undo what this checkpoint commits."""
    tasks = two_pipelines()
    tasks.take()
    tasks.trigger()
    tasks.acknowledge(2)
    tasks.fail("b2")
    assert only(tasks.restart(), DeployTasks) == []
    assert tasks.status is JobStatus.RESTARTING
    tasks.store()
    assert tasks.deployed(tasks.give()) == "a2#1 b2#1"
    assert tasks.restored()["b2"] == "2:/chk-2/b2"
    assert one(tasks.log, ResetSubtasks).checkpoint_id == 2


def test_restart_uses_the_previous_checkpoint_if_storing_the_last_one_fails() -> None:
    tasks = two_pipelines()
    tasks.take()
    tasks.trigger()
    tasks.acknowledge(2)
    stored = only(tasks.log, StoreCheckpoint)[-1]
    tasks.fail("b2")
    tasks.restart()
    tasks.told(CheckpointIsNotStored(stored, "disk full"))
    assert tasks.deployed(tasks.give()) == "a2#1 b2#1"
    assert tasks.restored()["b2"] == "1:/chk-1/b2"


def test_stored_checkpoint_does_not_shorten_the_restart_delay() -> None:
    tasks = two_pipelines()
    tasks.trigger()
    tasks.acknowledge(1)
    tasks.fail("b2")
    tasks.store()
    assert tasks.status is JobStatus.RESTARTING
    assert tasks.states() == "a1:RUNNING#0 a2:CANCELING#0 b1:RUNNING#0 b2:FAILED#0"
    assert tasks.deployed(tasks.restart()) == "a2#1 b2#1"


def test_job_cancelled_while_a_restart_waits_for_a_checkpoint_ends() -> None:
    tasks = two_pipelines()
    tasks.trigger()
    tasks.acknowledge(1)
    tasks.fail("b2")
    tasks.restart()
    tasks.tell(t.CancelJob())
    actions = tasks.confirm_cancellations()
    assert one(actions, JobEnded).result.status is JobStatus.CANCELED
    assert only(tasks.log, CloseCheckpointStores) == []
    actions = tasks.store()
    assert one(actions, DiscardCheckpoint).checkpoint.checkpoint_id == 1
    assert one(actions, CloseCheckpointStores).status is JobStatus.CANCELED
    assert only(actions, DeployTasks) == []


def test_job_that_fails_to_restore_is_not_restarted() -> None:
    """EX-16, CP-35: a local restart is skipped, because the same error would occur again."""
    tasks = CheckpointedJob(checkpointed_graph(edges=["a --> b"]))
    tasks.scheduler.checkpoints_recovered([completed(3, "a", "c")])
    tasks.tell(t.StartJob())
    ended = one(tasks.log, JobEnded)
    assert ended.result.status is JobStatus.FAILED
    assert "state of operators that the job does not have" in (ended.result.failure or "")
    assert not only(tasks.log, DeployTasks)
    assert not only(tasks.log, StartCoordinator)
    assert one(tasks.log, CloseCheckpointStores).status is JobStatus.FAILED


def test_take_over_without_recovery_notes_reports_that_the_last_checkpoint_is_used() -> None:
    """Also if no TaskExecutor has reported yet that its tasks run."""
    tasks = CheckpointedJob()
    tasks.scheduler.checkpoints_recovered([completed(3, "a", "b")])
    tasks.scheduler.handle(t.TakeOverJob(None, (), ()), 1.0)
    (failure,) = tasks.scheduler.exceptions()
    assert "begins from its last checkpoint" in failure.text


def test_take_over_without_recovery_notes_after_a_savepoint_start_reports_no_failure() -> None:
    tasks = CheckpointedJob()
    given = SavepointGiven(completed(3, "a", "b", is_savepoint=True))
    tasks.scheduler.handle(given, 1.0)
    tasks.scheduler.handle(t.TakeOverJob(None, (), ()), 1.0)
    assert tasks.scheduler.exceptions() == ()


def test_job_with_a_finished_reader_of_an_unfinished_operator_fails() -> None:
    """CP-40: the output of the unfinished operator would be lost."""
    operators = [
        checkpointed.operator("a", checkpointed.keyed_by_range("/a", 128, 2)),
        checkpointed.operator("b", [OperatorSubtaskState()] * 2, finished=[0, 1]),
    ]
    metadata = checkpointed.metadata(*operators, checkpoint_id=3)
    tasks = CheckpointedJob()
    tasks.scheduler.checkpoints_recovered([CompletedCheckpoint(metadata, CHECKPOINT, "/chk-3")])
    tasks.tell(t.StartJob())
    assert "would be lost" in (one(tasks.log, JobEnded).result.failure or "")


# --- the job's start and its end ------------------------------------------------------------------


def completed(
    checkpoint_id: int,
    *names: str,
    max_parallelism: int = 128,
    is_savepoint: bool = False,
) -> CompletedCheckpoint:
    """With keyed state of these operators, of two subtasks each."""
    operators = (
        checkpointed.operator(
            name,
            checkpointed.keyed_by_range(f"/{name}", max_parallelism, 2),
            max_parallelism=max_parallelism,
        )
        for name in names
    )
    metadata = checkpointed.metadata(*operators, checkpoint_id=checkpoint_id)
    properties = savepoint() if is_savepoint else CHECKPOINT
    metadata = replace(metadata, job_id=OTHER_JOB if is_savepoint else JOB)
    return CompletedCheckpoint(metadata, properties, f"/chk-{checkpoint_id}/_metadata")


def test_job_recovered_from_another_job_master_starts_from_its_latest_checkpoint() -> None:
    """CP-28"""
    tasks = CheckpointedJob(checkpointed_graph())
    tasks.scheduler.checkpoints_recovered([completed(5, "b"), completed(4, "a", "b")])
    tasks.run()
    assert {name: text[:2] for name, text in tasks.restored().items()} == dict.fromkeys(
        ("a1", "a2", "b1", "b2"), "5:"
    )
    with_state = [
        tasks.name(attempt_id)
        for attempt_id, task in tasks.tasks.items()
        if task.restored is not None and task.restored.state is not None
    ]
    assert with_state == ["b1", "b2"]
    assert one(tasks.log, RestoreCoordinators) == RestoreCoordinators(5, {"a": None}, 1)
    kinds = [type(a) for a in tasks.log]
    assert kinds.index(RestoreCoordinators) < kinds.index(StartCoordinator)
    assert {task.restores for task in tasks.tasks.values()} == {1}
    tasks.last_id = 5
    tasks.take()
    dropped = [d.checkpoint.checkpoint_id for d in only(tasks.log, DiscardCheckpoint)]
    assert dropped == [4, 5]


def test_new_job_without_checkpoints_restores_nothing() -> None:
    tasks = running()
    assert not only(tasks.log, RestoreCoordinators)
    assert not only(tasks.log, ResetSubtasks)
    assert {task.restores for task in tasks.tasks.values()} == {0}
    assert set(tasks.restored().values()) == {"anew"}


def test_tasks_get_the_max_parallelism_of_their_restored_state() -> None:
    """CP-36: also the tasks that send keyed records to them."""
    tasks = CheckpointedJob(checkpointed_graph())
    tasks.scheduler.checkpoints_recovered([completed(5, "b", max_parallelism=64)])
    tasks.run()
    deployed = {
        part.content.name: part.content
        for action in only(tasks.log, DeployTasks)
        for part in action.deployments.parts
        if isinstance(part.content, VertexInformation)
    }
    assert {name: v.max_parallelism for name, v in deployed.items()} == {"a": 128, "b": 64}
    (result,) = deployed["a"].results
    assert [consumer.max_parallelism for consumer in result.consumers] == [64]
    tasks.last_id = 5
    tasks.take()
    operators = only(tasks.log, StoreCheckpoint)[-1].metadata.operators
    assert [operator.max_parallelism for operator in operators] == [128, 64]


def test_changed_max_parallelism_sends_the_vertex_and_its_producers_to_workers_again() -> None:
    tasks = running(edges=["a -> b"])
    (b,) = [v for v in tasks.scheduler._graph.vertices if v.vertex.name == "b"]
    b.max_parallelism = 64
    tasks.scheduler._outbox.bulk.max_parallelism_changed([b])
    before = len(tasks.log)
    tasks.fail("a1")
    tasks.restart()
    parts = [p for d in only(tasks.log[before:], DeployTasks) for p in d.deployments.parts]
    assert {p.version for p in parts if isinstance(p.content, VertexInformation)} == {1}


def test_configured_max_parallelism_that_differs_from_state_fails_the_job() -> None:
    """CP-36"""
    vertices = stream_vertex("a", 2), stream_vertex("b", 2, max_parallelism=32)
    tasks = CheckpointedJob(checkpointed_graph(*vertices))
    tasks.scheduler.checkpoints_recovered([completed(5, "b", max_parallelism=64)])
    tasks.tell(t.StartJob())
    assert "is configured with 32" in (one(tasks.log, JobEnded).result.failure or "")


def test_job_starts_from_a_savepoint() -> None:
    """JM-09"""
    tasks = CheckpointedJob()
    given = completed(9, "b", is_savepoint=True)
    actions = tasks.tell(SavepointGiven(given))
    assert one(actions, AddRestoredSavepoint).checkpoint == given
    tasks.run()
    assert {text[:2] for text in tasks.restored().values()} == {"9:"}
    assert tasks.restored_from_another_job() == {True}
    tasks.last_id = 9
    order, _ = tasks.orders(tasks.trigger())[0]
    assert isinstance(order, TriggerCheckpoint)
    assert order.is_whole


def test_checkpoint_of_the_job_is_restored_in_place_of_its_start_savepoint() -> None:
    """JM-09"""
    tasks = CheckpointedJob()
    tasks.scheduler.checkpoints_recovered([completed(3, "b")])
    assert tasks.tell(SavepointGiven(completed(9, "b", is_savepoint=True))) == []
    tasks.run()
    assert {text[:2] for text in tasks.restored().values()} == {"3:"}


def test_savepoint_with_state_that_no_operator_has_fails_the_job() -> None:
    """JM-10"""
    tasks = CheckpointedJob()
    actions = tasks.tell(SavepointGiven(completed(9, "c", is_savepoint=True)))
    ended = one(actions, JobEnded)
    assert ended.result.status is JobStatus.FAILED
    assert "state of operators that the job does not have" in (ended.result.failure or "")
    assert only(actions, AddRestoredSavepoint) == []
    assert tasks.tell(t.StartJob()) == []


def test_job_without_checkpoints_cannot_start_from_a_savepoint() -> None:
    tasks = stream(a=1)
    actions = tasks.tell(SavepointGiven(completed(9, "a", is_savepoint=True)))
    assert "takes no checkpoints" in (one(actions, JobEnded).result.failure or "")


@pytest.mark.parametrize(
    ("retention", "discarded"),
    [
        (CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION, [1]),
        (CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION, []),
    ],
)
def test_job_end_discards_unretained_checkpoints_before_the_end_is_reported(
    retention: CheckpointRetentionPolicy, discarded: list[int]
) -> None:
    """CP-29, CP-33"""
    tasks = running(checkpoints=replace(EVERY_MINUTE, retention=retention))
    tasks.take()
    tasks.trigger()
    actions = tasks.tell(t.CancelJob())
    assert {type(o) for o, _ in tasks.orders(actions)} == {CheckpointAborted}
    actions = tasks.confirm_cancellations()
    assert [d.checkpoint.checkpoint_id for d in only(actions, DiscardCheckpoint)] == discarded
    assert one(actions, CloseCheckpointStores).status is JobStatus.CANCELED
    assert isinstance(actions[-1], JobEnded)
    error = one(tasks.request(), SnapshotFinished).error
    assert error is not None
    assert error.reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN


def test_suspended_job_discards_no_checkpoint() -> None:
    """CP-33"""
    tasks = running()
    tasks.take()
    tasks.trigger()
    actions = tasks.tell(t.SuspendJob("another leads"))
    assert {type(o) for o, _ in tasks.orders(actions)} == {CheckpointAborted}
    actions = tasks.confirm_cancellations()
    assert not only(tasks.log, DiscardCheckpoint)
    assert not only(tasks.log, DiscardFiles)
    assert one(actions, CloseCheckpointStores).status is JobStatus.SUSPENDED


def test_checkpoint_stores_close_after_the_pending_store_at_the_job_end() -> None:
    tasks = running()
    tasks.trigger()
    tasks.acknowledge(1)
    tasks.finish("a1 a2 b1 b2")
    assert tasks.ended is not None
    assert only(tasks.log, CloseCheckpointStores) == []
    stored = only(tasks.log, StoreCheckpoint)[-1]
    actions = tasks.told(CheckpointIsNotStored(stored, "disk full"))
    assert one(actions, CloseCheckpointStores).status is JobStatus.FINISHED
    assert only(actions, OrderCheckpoint) == []


def test_state_acknowledged_after_the_job_end_is_discarded() -> None:
    tasks = running()
    tasks.trigger()
    late = tasks.acknowledgements(1)
    tasks.tell(t.CancelJob())
    tasks.confirm_cancellations()
    files = one(tasks.tell(t.TasksReported(tuple(late[:1]))), DiscardFiles).files
    assert [file.path for file in files] == ["/chk-1/a1"]


def test_job_that_is_stopped_with_a_savepoint_takes_no_more_checkpoints_and_finishes() -> None:
    tasks = running()
    actions = tasks.take(synchronous_savepoint(is_drain=True))
    assert only(actions, SnapshotFinished) == []
    assert {type(o) for o, _ in tasks.orders(actions)} == {CheckpointCompleted}
    assert only(tasks.tick(), PrepareCheckpoint) == []
    actions = tasks.finish("a1 a2 b1 b2")
    assert only(actions, NoteFinished) == [], "the next JobMaster goes on from the savepoint"
    assert one(actions, JobEnded).result.status is JobStatus.FINISHED
    assert one(actions, SnapshotFinished).path == "/chk-1"
    assert only(tasks.log, DiscardCheckpoint) == []


def test_failure_after_the_stop_savepoint_restarts_the_job_from_the_savepoint() -> None:
    """E2E-06: a task fails before it ends with the savepoint; a task of another region has ended
    already. The caller of stop gets an error."""
    tasks = two_pipelines()
    tasks.take(synchronous_savepoint(is_drain=False))
    tasks.finish("a1 b1")
    actions = tasks.fail("b2")
    error = one(actions, SnapshotFinished).error
    assert isinstance(error, StopWithSavepointError)
    assert error.path == "/chk-1"
    tasks.restart()
    assert tasks.restored() == {name: f"1:/chk-1/{name}" for name in ("a1", "a2", "b1", "b2")}
    assert tasks.restored_from_another_job() == {False}
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    assert only(tasks.tick(), PrepareCheckpoint) != []


def test_task_failure_while_the_stop_savepoint_is_stored_restarts_all_tasks_from_it() -> None:
    """E2E-06: the caller of stop gets an error although the savepoint is complete. Tasks of the
    other region end with the savepoint and are restarted, too."""
    tasks = two_pipelines()
    tasks.trigger(synchronous_savepoint(is_drain=False))
    tasks.acknowledge(1)
    assert only(tasks.fail("b2"), SnapshotFinished) == []
    error = one(tasks.store(), SnapshotFinished).error
    assert isinstance(error, StopWithSavepointError)
    assert error.path == "/chk-1"
    tasks.restart()
    assert tasks.restored() == {name: f"1:/chk-1/{name}" for name in ("a1", "a2", "b1", "b2")}
    assert tasks.restored_from_another_job() == {False}
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    assert only(tasks.tick(), PrepareCheckpoint) != []


@pytest.mark.parametrize("end", [t.CancelJob(), t.SuspendJob("its JobMaster stops")])
def test_stop_of_a_job_cancelled_or_suspended_meanwhile_fails_with_savepoint_path(
    end: JobEvent,
) -> None:
    tasks = running()
    tasks.take(synchronous_savepoint(is_drain=False))
    tasks.finish("a1")
    tasks.tell(end)
    tasks.confirm_cancellations()
    error = one(tasks.log, SnapshotFinished).error
    assert isinstance(error, StopWithSavepointError)
    assert error.path == "/chk-1"


def test_job_is_restarted_if_its_stop_savepoint_fails() -> None:
    """CP-20"""
    tasks = running()
    tasks.trigger(synchronous_savepoint(is_drain=False))
    tasks.decline(1, "b1")
    assert tasks.status is JobStatus.RESTARTING
    tasks.restart()
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    assert only(tasks.tick(), PrepareCheckpoint) != []


# --- periodic -------------------------------------------------------------------------------------


def test_periodic_checkpoints_pause_while_the_job_does_not_run() -> None:
    """CP-11"""
    tasks = two_pipelines()
    old = only(tasks.log, StartTimer)[-1]
    tasks.fail("b2")
    assert tasks.tell(old.event) == []
    tasks.restart()
    assert only(tasks.log, StartTimer)[-1] != old
    tasks.report(list(tasks.tasks), ExecutionState.RUNNING)
    assert only(tasks.tick(), PrepareCheckpoint) != []


def test_job_without_a_checkpoint_interval_takes_checkpoints_only_on_request() -> None:
    tasks = running(checkpoints=CheckpointConfiguration())
    assert only(tasks.log, StartTimer) == []
    tasks.take()
    assert tasks.scheduler.details().checkpoints.completed == 1  # type: ignore[union-attr]


def test_transcript_does_not_contain_the_state_that_tasks_acknowledge() -> None:
    tasks = running()
    tasks.take()
    kept = [applied.transition for applied in tasks.scheduler.transcript]
    (answered,) = [one for one in kept if "CheckpointAnswered" in str(one)]
    first = f"{tasks.attempt('a1')} AcknowledgeCheckpoint"
    assert isinstance(answered, str)
    assert answered.startswith(f"CheckpointAnswered(4: {first}, ")
    assert "CheckpointIsStored(1, /chk-1/_metadata)" in kept


# --- what tasks are told with their deployment ----------------------------------------------------


@pytest.mark.parametrize("is_exactly_once", [True, False])
def test_tasks_are_told_the_checkpointing_mode_and_the_inline_threshold(
    *, is_exactly_once: bool
) -> None:
    checkpoints = replace(EVERY_MINUTE, is_exactly_once=is_exactly_once)
    graph = checkpointed_graph(checkpoints=checkpoints)
    key = "execution.checkpointing.data-inline-threshold"
    tasks = CheckpointedJob(replace(graph, configuration={key: "5b"}))
    tasks.run()
    (part,) = (
        part
        for part in only(tasks.log, DeployTasks)[0].deployments.parts
        if isinstance(part.content, JobInformation)
    )
    assert isinstance(part.content, JobInformation)
    assert part.content.is_exactly_once is is_exactly_once
    assert part.content.inline_threshold == 5
