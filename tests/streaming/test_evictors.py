"""Which records evictors leave in a window, as Flink's do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flinkray.streaming.windowing.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
    TimestampedValue,
)

WINDOW: Any = None


def difference(one: float, other: float) -> float:
    return other - one


@pytest.mark.parametrize(
    ("make", "given", "left"),
    [
        (lambda after: CountEvictor.of(2, after), [1, 2, 3], [2, 3]),
        (lambda after: CountEvictor.of(2, after), [1], [1]),
        (lambda after: CountEvictor.of(0, after), [1, 2], []),
        (lambda after: TimeEvictor.of(5, after), [1, 9, 4, 5], [9, 5]),
        (lambda after: DeltaEvictor.of(3, difference, after), [1, 2, 5, 4], [2, 5, 4]),
        (lambda after: DeltaEvictor.of(3, difference, after), [0, math.nan, 4], [math.nan, 4]),
        (lambda after: DeltaEvictor.of(3, difference, after), [], []),
    ],
)
def test_evictor_removes_all_records_but_the_expected_ones(
    make: Any, given: list[float], left: list[float]
) -> None:
    """Before the window function is called, or after the call. Records that cannot be compared
    stay."""
    elements = [TimestampedValue(v, 0 if math.isnan(v) else int(v)) for v in given]
    before: Evictor = make(False)
    after: Evictor = make(True)
    for evict, stays in [
        (before.evict_before, left), (before.evict_after, given),
        (after.evict_before, given), (after.evict_after, left),
    ]:  # fmt: skip
        assert [repr(element.value) for element in evict(elements, WINDOW)] == list(
            map(repr, stays)
        )


def test_time_evictor_keeps_records_without_a_timestamp() -> None:
    elements = [TimestampedValue("a", None), TimestampedValue("b", None)]
    assert TimeEvictor.of(5).evict_before(elements, WINDOW) == elements
