"""Notes of look-ups: of each subtask, what its latest attempt has noted counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.file_results import LookUpNotes


@pytest.fixture
def notes(tmp_path: Path) -> LookUpNotes:
    return LookUpNotes(str(tmp_path / "notes"))


def test_look_up_buffer_counts_as_full_while_that_of_any_subtask_is_full(
    notes: LookUpNotes,
) -> None:
    assert not notes.is_full("1")
    notes.note("1", 0, 0, is_full=True)
    notes.note("1", 10, 0, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 0, is_full=False)
    assert notes.is_full("1")
    notes.note("1", 10, 0, is_full=False)
    assert not notes.is_full("1")


def test_full_look_up_buffer_of_an_attempt_counts_until_the_next_attempt_reports(
    notes: LookUpNotes,
) -> None:
    notes.note("1", 0, 9, is_full=True)
    assert notes.is_full("1")
    notes.note("1", 0, 10, is_full=False)
    assert not notes.is_full("1")


def test_full_look_up_buffer_reported_late_by_a_replaced_attempt_is_ignored(
    notes: LookUpNotes,
) -> None:
    notes.note("1", 0, 1, is_full=False)
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("1")


def test_full_look_up_buffer_in_one_execution_does_not_count_in_another_execution(
    notes: LookUpNotes,
) -> None:
    """Another execution may have fewer subtasks."""
    notes.note("1", 0, 0, is_full=True)
    assert not notes.is_full("2")
    notes.note("2", 0, 0, is_full=False)
    assert notes.is_full("1")
