"""What JobMasters have a TaskExecutor keep for the next ones of their jobs."""

from __future__ import annotations

from pathlib import Path

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.task_executor.kept_copies import KeptCopies
from flinkray.core.ids import ExecutionGraphID, JobVertexID
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import number
from tests.actors.task_executor_under_test import JOB, MASTER, NEXT_MASTER, A, Bench, task

VERTEX = number(JobVertexID, 1)


def notes(restores: int) -> KeptPiece:
    return KeptPiece(notes=JobNotes(number(ExecutionGraphID, 1), (1,), b"", restores))


def part(version: int) -> KeptPiece:
    return KeptPiece(part=KeptPart(VERTEX, 0, version))


def kept(copies: KeptCopies) -> tuple[int | None, list[int]]:
    """Restores of the notes, and versions of the parts."""
    found = copies.notes(JOB)
    versions, number_ = [], 0
    while (piece := copies.piece(JOB, number_)) is not None:
        assert piece.part is not None
        versions.append(piece.part.version)
        number_ += 1
    return None if found is None else found.restores, versions


def test_recovery_backup_is_readable_and_takes_changes_once_its_notes_have_arrived() -> None:
    copies = KeptCopies()
    assert copies.keep(JOB, MASTER, 1, part(1))
    assert kept(copies) == (None, [])
    assert copies.keep(JOB, MASTER, 1, notes(1))
    assert kept(copies) == (1, [1])
    assert copies.keep(JOB, MASTER, 1, part(2))
    assert kept(copies) == (1, [2])


def test_recovery_backup_of_the_next_job_master_replaces_the_last_backup_as_a_whole() -> None:
    """The next JobMaster may die in between, and parts of two JobMasters do not belong together."""
    copies = KeptCopies()
    for piece in (part(5), notes(1)):
        copies.keep(JOB, MASTER, 3, piece)
    copies.keep(JOB, NEXT_MASTER, 1, part(0))
    assert kept(copies) == (1, [5])
    copies.keep(JOB, NEXT_MASTER, 1, notes(2))
    assert kept(copies) == (2, [0])


def test_late_change_to_an_earlier_recovery_backup_is_refused() -> None:
    """The call was interrupted, and all pieces were sent again as a new copy."""
    copies = KeptCopies()
    for piece in (part(1), notes(1)):
        copies.keep(JOB, MASTER, 2, piece)
    assert not copies.keep(JOB, MASTER, 1, notes(0))
    copies.keep(JOB, MASTER, 3, part(2))
    assert not copies.keep(JOB, MASTER, 2, part(9))
    assert kept(copies) == (1, [1])


def test_deleted_recovery_backup_is_not_given_to_the_next_job_master() -> None:
    copies = KeptCopies()
    for piece in (part(1), notes(1)):
        copies.keep(JOB, MASTER, 1, piece)
    copies.forget(JOB)
    assert kept(copies) == (None, [])


@on_virtual_time
async def test_next_job_master_gets_the_recovery_backup_and_acknowledged_checkpoints(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    deployed = task(A)
    await deployed.submit(executor)
    for piece in (part(7), notes(1)):
        assert await executor.keep(JOB, MASTER, 1, piece)
    bench.endpoint._task_table.reported([AcknowledgeCheckpoint(JOB, 4, deployed.attempt_id, None)])
    second = await bench.next_job_master(executor)
    ((_, report),) = second.calls_of(JobMasterGateway.register_task_executor)
    assert report.notes == notes(1).notes
    assert [one.acknowledged for graph in report.graphs for one in graph.tasks] == [4]
    assert await executor.hand_over(JOB, NEXT_MASTER, 0) == part(7)
    assert await executor.hand_over(JOB, NEXT_MASTER, 1) is None


@on_virtual_time
async def test_recovery_backup_is_dropped_with_the_last_slot_of_the_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    executor, _ = await bench.start_with_slot()
    assert await executor.keep(JOB, MASTER, 1, notes(1))
    await executor.free_slot(A, MASTER, "not needed any more")
    assert bench.endpoint._kept.notes(JOB) is None
    assert not await executor.keep(JOB, MASTER, 1, notes(2))
