"""What is told of an exception of user code."""

from __future__ import annotations

from flinkray.actors.task_process.code_failure import CodeFailure
from flinkray.core.errors import SuppressRestartsError
from flinkray.streaming.operator_errors import operator_error


def raised_from(cause: BaseException) -> BaseException:
    """As an operator's failure is, in the task's thread."""
    error = operator_error(cause, "Map")
    error.__cause__ = cause
    return error


def test_suppress_restarts_error_is_found_among_the_causes() -> None:
    assert CodeFailure.of(raised_from(SuppressRestartsError("no"))).suppress_restarts
    assert CodeFailure.of(raised_from(raised_from(SuppressRestartsError("no")))).suppress_restarts
    assert not CodeFailure.of(raised_from(ValueError("no"))).suppress_restarts


def test_circular_causes_of_an_error_are_examined_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert not CodeFailure.of(first).suppress_restarts
