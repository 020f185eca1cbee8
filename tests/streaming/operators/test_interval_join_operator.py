"""Interval joins."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    ProcessJoinFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    assert_input_that_comes_back_holds_time_back,
    assert_time_is_the_lesser_of_two,
    columns,
    failure,
    unlike_five,
)

SIDE: OutputTag[Any] = OutputTag("side")


class Pairs(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        assert ctx.get_timestamp() == max(ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield left[1], right[1]


def join(lower: int, upper: int, restore: Any = None, **late: Any) -> OperatorHarness:
    operator = IntervalJoinOperator(Pairs(), lower, upper, BY_FIRST, BY_FIRST, **late)
    return OperatorHarness(operator, keyed=True, side_outputs=["side"], restore=restore)


def feed(h: OperatorHarness, *times: int) -> None:
    for time in times:
        h.process(("k", time), at=time)
        h.process(("k", time), at=time, on=1)


@pytest.mark.parametrize(
    ("lower", "upper", "differences"),
    [(-1, 1, {-1, 0, 1}), (0, 1, {0, 1}), (-1, 0, {-1, 0}), (0, 0, {0}), (-3, -1, {-3, -2, -1})],
)
def test_interval_bounds_are_inclusive_and_pairs_have_the_later_timestamp(
    lower: int, upper: int, differences: set[int]
) -> None:
    """WI-15: (-1, 1) with both bounds exclusive is (0, 0)."""
    h = join(lower, upper)
    feed(h, 1, 2, 3, 4, 5)
    expected = {
        ((left, right), max(left, right))
        for left in range(1, 6)
        for right in range(1, 6)
        if right - left in differences
    }
    records = h.records()
    assert set(records) == expected
    assert len(records) == len(expected)


def test_only_records_with_equal_keys_are_joined() -> None:
    h = join(-10, 10)
    h.process(("a", 1), at=1)
    h.process(("b", 1), at=1, on=1)
    assert h.values() == []


def test_record_without_a_timestamp_is_refused_by_an_interval_join() -> None:
    """WI-15"""
    with pytest.raises(StreamError, match="no timestamps"):
        join(0, 1).process(("a", 1))


def test_late_records_are_not_joined_by_an_interval_join() -> None:
    """WI-15"""
    h = join(-1, 1, late_left=SIDE)
    h.watermark(5)
    h.watermark(5, on=1)
    h.process(("k", 4), at=4)
    h.process(("k", 5), at=5, on=1)
    assert h.values() == []
    assert h.side("side") == [("k", 4)]
    h.process(("k", 6), at=6)
    assert h.values() == [(6, 5)]


def test_watermark_removes_interval_join_records_that_can_find_no_partner() -> None:
    """WI-15"""
    h = join(0, 1)
    feed(h, 1, 2, 3, 4, 5)
    for on in (0, 1):
        h.watermark(4, on=on)
    operator: Any = h.operator
    assert sorted(time for time, _ in operator.left.items("k")) == [4, 5]
    assert [time for time, _ in operator.right.items("k")] == [5]
    for on in (0, 1):
        h.watermark(7, on=on)
    assert len(operator.left) == len(operator.right) == 0


@pytest.mark.parametrize(("lower", "upper"), [(-3, -1), (1, 3), (0, 0), (-1, 1)])
def test_interval_join_stores_nothing_once_all_new_records_are_late(lower: int, upper: int) -> None:
    """WI-15: also if one stream is always behind the other."""
    h = join(lower, upper)
    feed(h, 1, 2, 3)
    for on in (0, 1):
        h.watermark(10, on=on)
    operator: Any = h.operator
    assert len(operator.left) == len(operator.right) == 0


def test_late_records_of_each_input_go_to_its_own_side_output() -> None:
    h = join(-1, 1, late_right=SIDE)
    for on in (0, 1):
        h.watermark(5, on=on)
    h.process(("k", 1), at=1)
    h.process(("k", 2), at=2, on=1)
    assert h.side("side") == [("k", 2)]


def test_function_that_changes_a_pair_does_not_change_stored_records() -> None:
    class Changes(Pairs):
        def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
            left[1].append("left")
            right[1].append("right")
            yield left[1], right[1]

    h = OperatorHarness(IntervalJoinOperator(Changes(), -1, 1, BY_FIRST, BY_FIRST), keyed=True)
    for on in (0, 1, 0, 1):
        h.process(("k", []), at=1, on=on)
    assert h.values() == [(["left"], ["right"])] * 4


def test_interval_join_with_an_empty_interval_is_refused() -> None:
    with pytest.raises(StreamError, match="above the upper bound"):
        join(2, 1)


def test_columns_of_each_input_become_rows_with_the_keys_of_that_input() -> None:
    operator = IntervalJoinOperator(Pairs(), -1, 1, Keys("k"), Keys("key"))
    h = OperatorHarness(operator, keyed=True)
    h.process_columns(columns([4, 9], k=["a", "a"], v=[1, 2]))
    h.process_columns(columns([5, 9], key=["a", "b"], v=[3, 4]), on=1)
    assert h.records() == [((1, 3), 5)]


def test_restored_join_records_find_partners_and_are_removed_by_the_watermark() -> None:
    h = join(-1, 1)
    h.process(("k", 4), ("k", 6), at=[4, 6])
    restored = join(-1, 1, restore=h.snapshot())
    restored.process(("k", 5), at=5, on=1)
    assert restored.records() == [((4, 5), 5), ((6, 5), 6)]
    for on in (0, 1):
        restored.watermark(10, on=on)
    operator: Any = restored.operator
    assert len(operator.left) == len(operator.right) == 0


def test_watermark_is_the_lesser_of_both_inputs_and_the_end_adds_no_result() -> None:
    h = join(-1, 1)
    h.process(("k", 50), at=50)
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_that_is_active_after_idleness_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(join(-1, 1))


def test_error_on_a_pair_names_the_record_that_found_its_partner() -> None:
    class Fails(Pairs):
        def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
            yield unlike_five(right)

    operator = IntervalJoinOperator(Fails(), 0, 0, BY_FIRST, BY_FIRST)

    def act(h: OperatorHarness) -> None:
        h.process(("k", 1), at=1)
        h.process(("k", 4), ("k", 5), at=1, on=1)

    assert failure(operator, act, keyed=True).record == "('k', 5)"
