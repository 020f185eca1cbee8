"""What a job goes on from."""

from __future__ import annotations

import pytest

from flinkray.checkpoint.handles import InlineState
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.checkpoints.actions import (
    AddRestoredSavepoint,
    PrepareCheckpoint,
    ResetSubtasks,
    RestoreCoordinators,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import ReadyToRestore
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason, StateRestoreError
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, TriggerCheckpoint
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, savepoint
from flinkray.scheduler.checkpoints.restores import Restored
from tests.scheduler.builders import one, only
from tests.scheduler.checkpoints.checkpointed import metadata, operator
from tests.scheduler.checkpoints.job_with_checkpoints import (
    MANUAL,
    JobWithCheckpoints,
    Topology,
    answers,
    configuration,
    discarded,
    order,
    orders,
    state,
)
from tests.scheduler.graphs import vertex_id

SAVEPOINT = savepoint()


def restore(job: JobWithCheckpoints, *, is_global: bool = True) -> Restored:
    return job.coordinator.restore(job.vertices, job.all_tasks, is_global=is_global)


def left_behind(
    checkpoint_id: int, *shared: str, properties: CheckpointProperties = MANUAL, name: str = "a"
) -> CompletedCheckpoint:
    """A checkpoint with keyed state of one subtask."""
    states = [state(name, shared=shared).operators[name]] if shared else []
    of = metadata(operator(name, states), checkpoint_id=checkpoint_id)
    return CompletedCheckpoint(of, properties, f"chk-{checkpoint_id}/_metadata")


def test_job_without_a_checkpoint_starts_without_state_unless_it_requires_one() -> None:
    """CP-34, CP-30: coordinators learn that there is no checkpoint, and reset their hooks."""
    job = JobWithCheckpoints(coordinators=("a",))
    restored = restore(job)
    assert (restored.checkpoint_id, restored.tasks) == (None, {})
    assert restored.actions == [RestoreCoordinators(None, {"a": None}, 1)]
    with pytest.raises(StateRestoreError, match="no checkpoint to restore from"):
        job.coordinator.restore(job.vertices, job.all_tasks, is_global=True, is_required=True)
    assert restore(JobWithCheckpoints()).actions == []


def test_global_failover_restores_tasks_coordinators_and_hooks_from_the_checkpoint() -> None:
    """CP-30: the states of all hooks are given to the coordinators."""
    job = JobWithCheckpoints(coordinators=("a", "b"))
    of_hooks = (MasterState("h", b"m"), MasterState("i", b"n"))
    job.prepare(job.request())
    job.coordinator.coordinator_acknowledged(1, "a", InlineState(b"cut"), 0.0, of_hooks[:1])
    job.coordinator.coordinator_acknowledged(1, "b", None, 0.0, of_hooks[1:])
    job.complete(1, state("a", "x"))
    restored = restore(job)
    assert restored.checkpoint_id == 1
    assert restored.tasks == {(vertex_id("a"), 0): state("a", "x")}
    assert restored.max_parallelism == {vertex_id("a"): 128, vertex_id("b"): 128}
    assert restored.actions == [
        RestoreCoordinators(1, {"a": InlineState(b"cut"), "b": None}, 1, of_hooks)
    ]
    told = job.coordinator.overview()
    assert (told.restored, told.latest_restored) == (1, 1)


@pytest.mark.parametrize("is_there", [True, False])
def test_regional_failover_resets_only_the_failed_subtasks_at_their_coordinators(
    is_there: bool,
) -> None:
    """CP-32: coordinators and hooks themselves are not restored."""
    job = JobWithCheckpoints(topology=Topology(3, 1), coordinators=("a",))
    if is_there:
        job.prepare(job.request())
        job.coordinator.coordinator_acknowledged(1, "a", None, 0.0, (MasterState("h", b"m"),))
        job.complete(1, state("a", "x"), state("a", "y"))
    tasks = {(vertex_id("a"), 0): 1, (vertex_id("a"), 2): 3, (vertex_id("b"), 0): 1}
    restored = job.coordinator.restore(job.vertices, tasks, is_global=False)
    checkpoint_id = 1 if is_there else None
    assert restored.actions == [ResetSubtasks(checkpoint_id or 0, {"a": ((0, 1), (2, 3))})]
    assert list(restored.tasks) == ([(vertex_id("a"), 0)] if is_there else [])
    other = job.coordinator.restore(job.vertices, {(vertex_id("b"), 0): 1}, is_global=False)
    assert other.actions == []


def test_restore_waits_for_the_checkpoint_being_stored() -> None:
    """CP-28: the checkpoint may be durable already, and the next JobMaster would restore it."""
    job = JobWithCheckpoints(configuration(max_concurrent=2))
    job.begin()
    job.begin()
    storing = job.acknowledge(1, "a0", "b0")
    actions = job.coordinator.prepare_restore("a task failed", 0.0, is_global=True)
    assert not only(actions, ReadyToRestore)
    assert [a.order.checkpoint_id for a in orders(actions, CheckpointAborted)] == [2]
    assert answers(actions) == {2: CheckpointFailureReason.JOB_FAILOVER_REGION}
    with pytest.raises(IllegalTransitionError, match="checkpoint 1 is stored"):
        restore(job)
    assert answers(job.request()) == {3: CheckpointFailureReason.JOB_FAILOVER_REGION}
    assert only(job.store(storing), ReadyToRestore)
    assert restore(job).checkpoint_id == 1
    assert only(job.request(), PrepareCheckpoint)


def test_restore_goes_ahead_once_storing_the_awaited_checkpoint_has_failed() -> None:
    """CP-28"""
    job = JobWithCheckpoints()
    job.begin()
    stored = one(job.acknowledge(1, "a0", "b0"), StoreCheckpoint)
    job.coordinator.prepare_restore("a task failed", 0.0, is_global=True)
    assert only(job.coordinator.checkpoint_not_stored(stored, "full", 0.0), ReadyToRestore)
    assert restore(job).checkpoint_id is None


def test_restore_starts_at_once_if_no_checkpoint_is_being_stored() -> None:
    """CP-28: waiting checkpoint requests fail."""
    job = JobWithCheckpoints()
    job.begin()
    assert job.request() == []
    actions = job.coordinator.prepare_restore("a task failed", 0.0, is_global=True)
    assert only(actions, ReadyToRestore)
    failover = CheckpointFailureReason.JOB_FAILOVER_REGION
    assert answers(actions) == {1: failover, 2: failover}
    assert "a task failed" in str(actions)


# --- after another JobMaster ----------------------------------------------------------------------


def test_new_job_master_restores_the_latest_checkpoint_and_assigns_higher_ids() -> None:
    """CP-28, CP-13"""
    job = JobWithCheckpoints()
    job.coordinator.recovered([left_behind(i, "w") for i in (5, 7, 6)])
    assert restore(job).checkpoint_id == 7
    refused = job.prepare(job.request(), 7)
    assert list(answers(refused).values()) == [CheckpointFailureReason.IO_EXCEPTION]
    assert order(job.prepare(job.request(), 8), TriggerCheckpoint).order.latest_completed == 7


def test_shared_file_of_a_recovered_checkpoint_is_deleted_with_its_last_user() -> None:
    """CP-38"""
    job = JobWithCheckpoints(configuration(max_retained=2))
    job.coordinator.recovered([left_behind(1, "w1"), left_behind(2, "w1", "c2")])
    job.last_id = 2
    job.begin()
    assert discarded(job.complete(3, state("a", shared=["w3"]))) == []
    job.begin()
    assert discarded(job.complete(4, state("a", shared=["w3"]))) == ["w1", "c2"]
    job.begin()
    assert discarded(job.complete(5)) == []
    job.begin()
    assert discarded(job.complete(6)) == ["w3"]


def test_job_started_from_a_savepoint_continues_its_checkpoint_ids() -> None:
    """JM-09: the files of the savepoint stay with the user."""
    job = JobWithCheckpoints()
    there = left_behind(40, "s", properties=SAVEPOINT)
    actions = job.coordinator.start_from_savepoint(there, job.vertices)
    assert actions == [AddRestoredSavepoint(there)]
    assert job.coordinator.retained == (there,)
    assert restore(job).tasks == {(vertex_id("a"), 0): state("a", shared=["s"])}
    job.last_id = 40
    assert order(job.prepare(job.request()), TriggerCheckpoint).order.is_whole
    assert discarded(job.complete(41, state("a", shared=["w"]))) == []


def test_checkpoint_of_the_job_itself_takes_precedence_over_its_start_savepoint() -> None:
    """JM-09"""
    job = JobWithCheckpoints()
    job.coordinator.recovered([left_behind(3)])
    there = left_behind(40, properties=SAVEPOINT)
    assert job.coordinator.start_from_savepoint(there, job.vertices) == []
    assert restore(job).checkpoint_id == 3


def test_start_savepoint_with_state_of_an_operator_missing_in_the_job_is_refused() -> None:
    """JM-10"""
    there = left_behind(40, "s", properties=SAVEPOINT, name="gone")
    job = JobWithCheckpoints()
    with pytest.raises(StateRestoreError, match="'gone'"):
        job.coordinator.start_from_savepoint(there, job.vertices)
    assert job.coordinator.latest is None
    allowed = JobWithCheckpoints(allow_non_restored_state=True)
    assert allowed.coordinator.start_from_savepoint(there, allowed.vertices)
    assert restore(allowed).tasks == {}
