"""Notes of look-ups: of each subtask, what its latest attempt has noted counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.file_results import LookUpNotes


@pytest.fixture
def notes(tmp_path: Path) -> LookUpNotes:
    return LookUpNotes(str(tmp_path / "notes"))


def test_look_up_is_full_while_at_least_one_subtask_is_full(notes: LookUpNotes) -> None:
    assert not notes.is_full("1")
    notes.note("1", 0, 0, is_full=True)
    notes.note("1", 10, 0, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 0, is_full=False)
    assert notes.is_full("1")
    notes.note("1", 10, 0, is_full=False)
    assert not notes.is_full("1")


def test_note_of_an_attempt_counts_until_the_next_attempt_writes_one(notes: LookUpNotes) -> None:
    notes.note("1", 0, 9, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 10, is_full=False)
    assert not notes.is_full("1")


def test_note_of_a_replaced_attempt_changes_nothing(notes: LookUpNotes) -> None:
    notes.note("1", 0, 1, is_full=False)
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("1")


def test_notes_of_one_execution_do_not_count_for_another_execution(notes: LookUpNotes) -> None:
    """Another execution may have fewer subtasks."""
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("2")
    notes.note("2", 0, 0, is_full=False)
    assert notes.is_full("1")
