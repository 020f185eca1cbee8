"""Notes of look-ups: of each subtask, what its latest attempt has noted counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.file_results import LookUpNotes


@pytest.fixture
def notes(tmp_path: Path) -> LookUpNotes:
    return LookUpNotes(str(tmp_path / "notes"))


def test_look_up_is_full_as_long_as_one_of_its_subtasks_is_full(notes: LookUpNotes) -> None:
    assert not notes.is_full("1")
    notes.note("1", 0, 0, is_full=True)
    notes.note("1", 10, 0, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 0, is_full=False)
    assert notes.is_full("1")
    notes.note("1", 10, 0, is_full=False)
    assert not notes.is_full("1")


def test_recorded_fullness_of_an_attempt_is_valid_until_its_next_attempt_records_one(
    notes: LookUpNotes,
) -> None:
    notes.note("1", 0, 9, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 10, is_full=False)
    assert not notes.is_full("1")


def test_fullness_recorded_late_by_a_replaced_attempt_of_a_look_up_is_ignored(
    notes: LookUpNotes,
) -> None:
    notes.note("1", 0, 1, is_full=False)
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("1")


def test_fullness_recorded_for_one_execution_is_not_valid_for_another_execution(
    notes: LookUpNotes,
) -> None:
    """Another execution may have fewer subtasks."""
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("2")
    notes.note("2", 0, 0, is_full=False)
    assert notes.is_full("1")
