"""Which checkpoints and files are kept."""

from __future__ import annotations

from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.scheduler.checkpoints.aborted_checkpoints import AbortedCheckpoints
from flinkray.scheduler.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
)
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    synchronous_savepoint,
)
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointRetentionPolicy
from flinkray.scheduler.shared.states import JobStatus
from tests.scheduler.checkpoints.checkpointed import file, metadata
from tests.scheduler.checkpoints.job_with_checkpoints import Topology, paths

CHECKPOINT = CheckpointProperties(SnapshotKind.CHECKPOINT)


def completed(
    checkpoint_id: int, properties: CheckpointProperties = CHECKPOINT
) -> CompletedCheckpoint:
    path = f"chk-{checkpoint_id}/_metadata"
    return CompletedCheckpoint(metadata(checkpoint_id=checkpoint_id), properties, path)


# --- checkpoints ----------------------------------------------------------------------------------


def test_the_newest_few_are_retained_and_the_highest_id_is_the_latest() -> None:
    """CP-07, CP-28"""
    store = CompletedCheckpoints(2)
    assert store.latest is None
    one, two, three = map(completed, (1, 2, 3))
    assert [store.add(one), store.add(three)] == [(), ()]
    assert store.add(two) == (one,)
    assert store.retained == (two, three)
    assert store.latest == three
    assert store.find(2) == two
    assert store.find(1) is None


def test_recovery_takes_all_there_is_in_any_order_and_cleans_nothing_up() -> None:
    """CP-28"""
    store = CompletedCheckpoints(1)
    one, two, three, four = map(completed, (1, 2, 3, 4))
    store.recover([two, three, one])
    assert store.latest == three
    assert store.retained == (one, two, three)
    assert store.add(four) == (one, two, three)


def test_the_end_of_the_job_takes_along_what_its_retention_says() -> None:
    """CP-29, CP-33"""
    kept = CheckpointProperties(
        SnapshotKind.CHECKPOINT, retention=CheckpointRetentionPolicy.RETAIN_ON_FAILURE
    )
    store = CompletedCheckpoints(9)
    savepoint = completed(2, synchronous_savepoint(is_drain=False))
    for each in (completed(1), savepoint, completed(3, kept)):
        store.add(each)
    assert store.job_ended(JobStatus.FAILED) == (completed(1),)
    assert store.retained == (savepoint, completed(3, kept))


# --- shared files ---------------------------------------------------------------------------------


def test_a_file_goes_when_the_last_checkpoint_that_refers_to_it_goes() -> None:
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


def test_a_file_stays_as_long_as_a_pending_checkpoint_may_refer_to_it() -> None:
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


def test_files_of_somebody_else_are_never_deleted() -> None:
    """CP-38"""
    registry = SharedStateRegistry()
    registry.register(1, [file("theirs")], is_foreign=True)
    registry.register(2, [file("theirs"), file("own")])
    assert registry.unregister(1, ()) == []
    assert paths(registry.unregister(2, [3])) == []
    assert paths(registry.pending_over(3)) == ["own"]
    assert registry.knows("theirs")


def test_a_checkpoint_that_is_not_registered_has_no_files() -> None:
    """CP-38"""
    assert SharedStateRegistry().unregister(7, ()) == []


# --- what failed ----------------------------------------------------------------------------------


def test_a_directory_goes_when_the_last_task_has_answered_or_ended() -> None:
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
