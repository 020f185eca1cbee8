"""Which checkpoints and files are kept."""

from __future__ import annotations

from flinkray.checkpoint.handles import InlineState, OperatorSubtaskState, StateLocation
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.scheduler.checkpoints.actions import DiscardCheckpoint, DiscardFiles, ForgetCheckpoint
from flinkray.scheduler.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
)
from flinkray.scheduler.checkpoints.events import CheckpointStep
from flinkray.scheduler.checkpoints.kept_checkpoints import AbortedCheckpoints, KeptCheckpoints
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointRetentionPolicy
from flinkray.scheduler.shared.states import JobStatus
from tests.scheduler.checkpoints.checkpointed import file, keyed, metadata, operator, written
from tests.scheduler.checkpoints.job_with_checkpoints import Topology, paths

CHECKPOINT = CheckpointProperties(SnapshotKind.CHECKPOINT)


STOPPED_WITH = synchronous_savepoint(is_drain=False)
KEPT_ON_FAILURE = CheckpointProperties(
    SnapshotKind.CHECKPOINT, retention=CheckpointRetentionPolicy.RETAIN_ON_FAILURE
)


def completed(
    checkpoint_id: int, properties: CheckpointProperties = CHECKPOINT, *shared: str
) -> CompletedCheckpoint:
    """*shared*: files of keyed state; it has a file of operator state besides, if any."""
    own = written(f"chk-{checkpoint_id}/own")
    states = [OperatorSubtaskState((own,), (keyed(each, 0, 127),)) for each in shared]
    return CompletedCheckpoint(
        metadata(operator("sum", states), checkpoint_id=checkpoint_id),
        properties,
        f"chk-{checkpoint_id}/_metadata",
    )


def told(actions: list[CheckpointStep]) -> list[str]:
    """What goes: ids of checkpoints, and paths of files."""
    found: list[str] = []
    for action in actions:
        match action:
            case DiscardCheckpoint(checkpoint):
                found.append(f"discard {checkpoint.checkpoint_id}")
            case ForgetCheckpoint(checkpoint):
                found.append(f"forget {checkpoint.checkpoint_id}")
            case DiscardFiles(files):
                found += paths(files)
            case _:
                raise AssertionError(action)
    return found


# --- checkpoints ----------------------------------------------------------------------------------


def test_configured_number_of_newest_checkpoints_is_retained() -> None:
    """CP-07, CP-28: the checkpoint with the highest id is the latest."""
    store = CompletedCheckpoints(2)
    assert store.latest is None
    one, two, three = map(completed, (1, 2, 3))
    assert [store.add(one), store.add(three)] == [(), ()]
    assert store.add(two) == (one,)
    assert store.retained == (two, three)
    assert store.latest == three
    assert store.find(2) == two
    assert store.find(1) is None


def test_recovery_sorts_all_checkpoints_by_id_and_removes_none() -> None:
    """CP-28"""
    store = CompletedCheckpoints(1)
    one, two, three, four = map(completed, (1, 2, 3, 4))
    store.recover([two, three, one])
    assert store.latest == three
    assert store.retained == (one, two, three)
    assert store.add(four) == (one, two, three)


def test_job_end_removes_checkpoints_by_their_retention_policy() -> None:
    """CP-29, CP-33"""
    store = CompletedCheckpoints(9)
    stopped_with, kept = completed(2, STOPPED_WITH), completed(3, KEPT_ON_FAILURE)
    for each in (completed(1), stopped_with, kept):
        store.add(each)
    assert store.job_ended(JobStatus.FAILED) == (completed(1),)
    assert store.retained == (stopped_with, kept)


# --- shared files ---------------------------------------------------------------------------------


def test_shared_file_is_deleted_with_the_last_checkpoint_that_refers_to_it() -> None:
    """CP-38: two subtasks with one, two and two files: ten handles in all."""
    registry = SharedStateRegistry()
    files = {n: [file(f"{subtask}{n}") for subtask in "ab"] for n in range(4)}
    registry.register(0, files[0])
    registry.register(1, files[0] + files[1])
    registry.register(2, files[1] + files[2])
    assert registry.unregister(0, ()) == []
    assert registry.unregister(1, ()) == files[0]
    assert registry.unregister(2, ()) == files[1] + files[2]
    assert not any(registry.knows(each.path) for of in files.values() for each in of)


def test_shared_file_is_kept_while_a_pending_checkpoint_may_refer_to_it() -> None:
    """CP-38"""
    registry = SharedStateRegistry()
    registry.register(1, [file("old"), file("older")])
    registry.register(2, [file("new")])
    assert registry.unregister(1, [3, 4]) == []
    assert registry.knows("old")
    assert registry.pending_over(4) == []
    registry.register(3, [file("old"), file("new")])
    assert paths(registry.pending_over(3)) == ["older"]
    assert registry.knows("old")
    assert paths(registry.unregister(3, ())) == ["old"]


def test_shared_files_of_a_savepoint_belong_to_the_user_and_are_never_deleted() -> None:
    """CP-38"""
    registry = SharedStateRegistry()
    registry.register(1, [file("theirs")], is_foreign=True)
    registry.register(2, [file("theirs"), file("own")])
    assert registry.unregister(1, ()) == []
    assert paths(registry.unregister(2, [3])) == []
    assert paths(registry.pending_over(3)) == ["own"]
    assert registry.knows("theirs")


def test_unregistering_an_unknown_checkpoint_deletes_no_files() -> None:
    """CP-38"""
    assert SharedStateRegistry().unregister(7, ()) == []


# --- checkpoints with their files -----------------------------------------------------------------


def test_subsumed_checkpoint_is_deleted_with_its_unshared_files() -> None:
    """CP-07, CP-38"""
    kept = KeptCheckpoints(1)
    assert kept.add(completed(1, CHECKPOINT, "old", "both")) == ()
    subsumed = kept.add(completed(2, CHECKPOINT, "both", "new"))
    assert [each.checkpoint_id for each in subsumed] == [1]
    assert told(kept.let_go(subsumed, ())) == ["discard 1", "old"]
    assert [kept.shares(file(path)) for path in ("old", "both", "new")] == [False, True, True]
    assert kept.latest == kept.retained[-1] == completed(2, CHECKPOINT, "both", "new")


def test_files_of_a_subsumed_checkpoint_are_deleted_once_no_checkpoint_is_pending() -> None:
    """CP-38"""
    kept = KeptCheckpoints(1)
    kept.add(completed(1, CHECKPOINT, "old", "older"))
    assert told(kept.let_go(kept.add(completed(2)), (3, 4))) == ["discard 1"]
    assert kept.pending_over(3) == []
    kept.let_go(kept.add(completed(4, CHECKPOINT, "old")), ())
    assert told(kept.pending_over(4)) == ["older"]


def test_subsumed_savepoint_is_forgotten_and_keeps_all_its_files() -> None:
    """CP-38"""
    kept = KeptCheckpoints(1)
    kept.recover([completed(1, STOPPED_WITH, "theirs")])
    assert kept.latest == completed(1, STOPPED_WITH, "theirs")
    subsumed = kept.add(completed(2, CHECKPOINT, "theirs", "own"))
    assert told(kept.let_go(subsumed, ())) == ["forget 1"]
    assert told(kept.let_go(kept.add(completed(3)), ())) == ["discard 2", "own"]


def test_job_end_deletes_files_that_no_retained_checkpoint_refers_to() -> None:
    """CP-33, CP-38"""
    kept = KeptCheckpoints(9)
    kept.add(completed(1, CHECKPOINT, "old", "both"))
    kept.add(completed(2, KEPT_ON_FAILURE, "both"))
    kept.add(completed(3, CHECKPOINT, "new"))
    assert told(kept.job_ended(JobStatus.FAILED, (4,))) == ["discard 1", "discard 3"]
    assert told(kept.pending_over(4)) == ["old", "new"]
    assert kept.retained == (completed(2, KEPT_ON_FAILURE, "both"),)


def test_checkpoint_stored_after_job_end_is_kept_or_deleted_by_the_retention_policy() -> None:
    """CP-33"""
    kept = KeptCheckpoints(1)
    kept.add(completed(1, KEPT_ON_FAILURE, "old"))
    kept.job_ended(JobStatus.FAILED, (2,))
    late = completed(2, CHECKPOINT, "late")
    assert told(kept.add_after_the_end(late, JobStatus.FAILED)) == ["discard 2", "late"]
    late = completed(3, KEPT_ON_FAILURE, "old")
    assert told(kept.add_after_the_end(late, JobStatus.FAILED)) == ["discard 1"]
    assert kept.retained == (late,)
    assert kept.add_after_the_end(completed(4, savepoint(), "theirs"), JobStatus.FAILED) == []
    assert kept.latest == late


def test_unused_files_are_deleted_with_a_checkpoint_stored_after_the_job_end() -> None:
    """CP-33, CP-38"""
    kept = KeptCheckpoints(1)
    kept.add(completed(1, CHECKPOINT, "old", "both"))
    assert told(kept.job_ended(JobStatus.FAILED, (2,))) == ["discard 1"]
    late = completed(2, KEPT_ON_FAILURE, "both")
    assert told(kept.add_after_the_end(late, JobStatus.FAILED)) == ["old"]


def test_files_of_retained_checkpoints_and_all_savepoints_count_as_needed() -> None:
    """CP-05"""
    kept = KeptCheckpoints(1)
    kept.add_savepoint(1)
    kept.let_go(kept.add(completed(2)), ())
    assert [kept.needs(number) for number in (1, 2, 3)] == [True, True, False]
    kept.let_go(kept.add(completed(3)), ())
    assert [kept.needs(number) for number in (1, 2, 3)] == [True, False, True]


def test_state_of_an_aborted_checkpoint_is_discarded_except_shared_files() -> None:
    """CP-05"""
    kept = KeptCheckpoints(1)
    kept.add(completed(1, CHECKPOINT, "both"))
    received: list[StateLocation] = [file("one"), file("both"), file("three"), file("one")]
    received.append(InlineState(b"two"))
    assert told(kept.discard_state(received)) == ["one", "three"]
    assert kept.discard_state([file("both")]) == []


def test_late_state_is_discarded_except_files_that_the_completed_checkpoint_has() -> None:
    """CP-05"""
    kept = KeptCheckpoints(1)
    kept.add(completed(1, CHECKPOINT, "both"))
    received = [file("chk-1/own"), file("again"), file("both")]
    assert told(kept.discard_late_state(1, received)) == ["again"]
    assert told(kept.discard_late_state(2, received)) == ["chk-1/own", "again"]


# --- what failed ----------------------------------------------------------------------------------


def test_aborted_checkpoints_directory_is_deleted_after_its_last_possible_writer() -> None:
    """CP-05"""
    first, second, third = Topology(1, 2).attempts
    aborted = AbortedCheckpoints()
    assert aborted.add(1, "chk-1", [first, second, third]) == []
    assert aborted.add(2, "chk-2", [second]) == []
    assert aborted.add(3, "chk-3", []) == ["chk-3"]
    assert aborted.awaits(1, first)
    assert aborted.answered(1, first) == []
    assert not aborted.awaits(1, first)
    assert aborted.answered(1, first) == []
    assert aborted.answered(2, first) == []
    assert aborted.ended([second]) == ["chk-2"]
    assert aborted.answered(1, third) == ["chk-1"]
    aborted.add(4, "chk-4", [first])
    assert aborted.job_ended() == ["chk-4"]
    assert aborted.job_ended() == []
