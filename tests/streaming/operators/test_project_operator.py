"""Projection."""

from __future__ import annotations

import pytest

from flinkray.streaming.errors import operator_error
from flinkray.streaming.operators.basic import ProjectOperator
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.row import Row
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import assert_time_passes_and_the_end_adds_nothing, columns


def test_project_selects_fields_of_rows_tuples_and_columns() -> None:
    h = OperatorHarness(ProjectOperator((2, 0)))
    h.process((1, 2, 3), Row(a=1, b=2, c=3))
    h.process_columns(columns(a=[1], b=[2], c=[3]))
    assert h.values() == [(3, 1), Row.of(["c", "a"], [3, 1]), Row.of(["c", "a"], [3, 1])]


def test_projected_columns_stay_columns_and_keep_timestamps() -> None:
    h = OperatorHarness(ProjectOperator((1,)))
    h.process((1, 2), (3, 4), at=[5, 6])
    h.process_columns(columns([7, 8], a=[1, 2], b=[3, 4]))
    assert h.records() == [((2,), 5), ((4,), 6), (Row(b=3), 7), (Row(b=4), 8)]
    assert isinstance(h.batches()[1], Columns)


def test_projected_rows_without_names_have_no_names() -> None:
    h = OperatorHarness(ProjectOperator((1,)))
    h.process(Row(1, 2))
    (row,) = h.values()
    assert (row._fields, list(row)) == (None, [2])


def test_watermarks_pass_through_and_the_end_of_input_adds_no_result() -> None:
    h = OperatorHarness(ProjectOperator((0,)))
    assert_time_passes_and_the_end_adds_nothing(h)


def test_error_on_a_record_with_too_few_fields_names_the_record() -> None:
    h = OperatorHarness(ProjectOperator((1,)), subtask_index=1, parallelism=3)
    with pytest.raises(IndexError) as caught:
        h.process((1, 2), (3,))
    error = operator_error(caught.value, "the task")
    assert (error.operator, error.subtask, error.record) == ("operator", "2/3", "(3,)")
