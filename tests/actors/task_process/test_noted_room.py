"""What the task of a look-up notes of records that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.actors.task_process.task_files import NotedRoom
from flinkray.file_results import LookUpNotes


@pytest.fixture
def notes(tmp_path: Path) -> LookUpNotes:
    return LookUpNotes(str(tmp_path / "notes"))


def room(notes: LookUpNotes, attempt: int) -> NotedRoom:
    return NotedRoom(notes, "execution", 0, attempt, 100)


def test_look_up_task_that_was_never_full_of_waiting_records_writes_no_file(
    notes: LookUpNotes, tmp_path: Path
) -> None:
    room(notes, 0).free()
    assert list(tmp_path.iterdir()) == []


def test_full_look_up_task_is_recorded_as_free_at_the_end_of_its_table(notes: LookUpNotes) -> None:
    of_task = room(notes, 0)
    of_task.full()
    assert notes.is_full("execution")
    of_task.free()
    assert not notes.is_full("execution")


def test_look_up_task_is_recorded_as_free_although_its_earlier_attempt_was_full(
    notes: LookUpNotes,
) -> None:
    """The task went back to a checkpoint in which no record waited."""
    room(notes, 0).full()
    room(notes, 1).free()
    assert not notes.is_full("execution")
