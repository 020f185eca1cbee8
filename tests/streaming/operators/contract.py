"""What operators have in common, for their tests: time passes through, failures are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.state import ValueStateDescriptor
from flinkray.streaming.operator_errors import OperatorError, operator_error
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Columns, Watermark, WatermarkStatus
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])
PAIRS = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]
"""Keys and values."""


class Counting:
    """Counts per key, in keyed state."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default_value=0))

    def next(self) -> int:
        self.count.update(self.count.value() + 1)
        return int(self.count.value())


def columns(at: Sequence[int] | None = None, **fields: Any) -> Columns:
    """A batch of columns with timestamps *at*."""
    times = None if at is None else np.array(at, np.int64)
    return Columns(pa.record_batch(fields), times)


def columns_of(h: OperatorHarness) -> list[Columns]:
    """The batches that came out since the last call; all are columns."""
    batches = []
    for each in h.batches():
        assert isinstance(each, Columns)
        batches.append(each)
    return batches


def unlike_five(value: Any) -> Any:
    """A user's function, which fails on 5 and on what has 5 at its end."""
    if (value[-1] if isinstance(value, tuple) else value) == 5:
        raise ValueError("five is not liked")
    return value


def assert_time_passes(h: OperatorHarness) -> None:
    """Watermarks and changes of status go through."""
    h.output()
    h.watermark(5)
    h.status(True)
    h.status(False)
    h.watermark(9)
    assert h.output() == [
        Watermark(5), WatermarkStatus(True), WatermarkStatus(False), Watermark(9),
    ]  # fmt: skip


def assert_time_passes_and_the_end_adds_nothing(h: OperatorHarness) -> None:
    """The operator keeps no record back."""
    assert_time_passes(h)
    h.finish()
    assert h.output() == []


def assert_time_is_the_lesser_of_two(h: OperatorHarness) -> None:
    """Idle inputs do not count; when both are idle, so is the operator."""
    h.output()
    h.watermark(10)
    assert h.output() == []
    h.watermark(4, on=1)
    assert h.output() == [Watermark(4)]
    h.status(True, on=1)
    assert h.output() == [Watermark(10)]
    h.status(True)
    assert h.output() == [WatermarkStatus(True)]
    h.status(False)
    h.watermark(12)
    assert h.output() == [WatermarkStatus(False), Watermark(12)]


def assert_input_that_comes_back_holds_time_back(h: OperatorHarness) -> None:
    """From where it is, until the input has caught up.  Time stands still once both are idle."""
    h.output()
    h.status(True, on=1)
    h.watermark(10)
    assert h.output() == [Watermark(10)]
    h.status(False, on=1)
    h.watermark(20)
    h.watermark(7, on=1)
    assert h.output() == []
    h.watermark(15, on=1)
    assert h.output() == [Watermark(15)]
    h.status(True)
    h.status(True, on=1)
    assert h.output() == [WatermarkStatus(True)]
    h.status(False, on=1)
    h.watermark(30, on=1)
    assert h.output() == [WatermarkStatus(False), Watermark(30)]


def failure(
    operator: StreamOperator, act: Callable[[OperatorHarness], None], **context: Any
) -> OperatorError:
    """What is told when *act* makes the user's function fail, in the second subtask of three."""
    h = OperatorHarness(operator, subtask_index=1, parallelism=3, **context)
    with pytest.raises(ValueError, match="five is not liked") as caught:
        act(h)
    error = operator_error(caught.value, "the task")
    assert (error.operator, error.subtask) == ("operator", "2/3")
    assert "in unlike_five" in error.story
    return error


def assert_failure_is_told(
    operator: StreamOperator,
    *values: Any,
    record: Any,
    on: int = 0,
    at: Sequence[int] | int | None = None,
    **context: Any,
) -> None:
    """One of the values, not the last, makes the function fail: operator, subtask and *record* are
    named."""
    assert record in values[:-1]
    error = failure(operator, lambda h: h.process(*values, at=at, on=on), **context)
    assert error.record == repr(record)
