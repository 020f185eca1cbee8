"""Functions that are given the records of one key together."""

from __future__ import annotations

from typing import Any

from flinkray.datastream import KeyedGroupFunction
from flinkray.streaming.operators.process import KeyedGroupOperator
from flinkray.streaming.records.elements import Watermark
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import (
    BY_FIRST,
    PAIRS,
    Counting,
    assert_time_passes_and_the_end_adds_nothing,
    failure,
    unlike_five,
)


class Groups(Counting, KeyedGroupFunction[Any, Any, Any]):
    """The values of a group, how many groups of the key came, and their times."""

    def process_group(self, key: Any, values: list[Any], ctx: Any) -> Any:
        assert ctx.get_current_key() == key
        if ctx.timestamps is not None:
            ctx.timer_service().register_event_time_timer(max(ctx.timestamps) + 10)
        yield key, [value[1] for value in values], self.next(), ctx.timestamps, ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.next()


def new() -> OperatorHarness:
    return OperatorHarness(KeyedGroupOperator(Groups(), BY_FIRST), keyed=True)


def test_group_function_gets_all_records_of_a_key_in_a_batch_at_once() -> None:
    h = new()
    h.process(*PAIRS)
    h.process(("a", 5))
    assert h.records() == [
        (("a", [1, 3, 4], 1, None, None), None),
        (("b", [2], 1, None, None), None),
        (("a", [5], 2, None, None), None),
    ]


def test_results_of_a_group_have_its_latest_timestamp_and_timers_fire() -> None:
    h = new()
    h.process(*PAIRS, at=[3, 1, 7, 5])
    h.watermark(12)
    h.watermark(17)
    assert h.output() == [
        (("a", [1, 3, 4], 1, [3, 7, 5], 7), 7),
        (("b", [2], 1, [1], 1), 1),
        (("b", 2), 11),
        Watermark(12),
        (("a", 2), 17),
        Watermark(17),
    ]


def test_watermarks_and_idleness_pass_through() -> None:
    assert_time_passes_and_the_end_adds_nothing(new())


def test_error_of_a_group_function_names_the_key_and_the_number_of_records() -> None:
    class Failing(KeyedGroupFunction[Any, Any, Any]):
        def process_group(self, key: Any, values: list[Any], ctx: Any) -> Any:
            return [unlike_five(value) for value in values]

    error = failure(
        KeyedGroupOperator(Failing(), BY_FIRST), lambda h: h.process(("a", 1), ("a", 5)), keyed=True
    )
    assert (error.record, error.occasion) == ("", "2 records of key 'a'")
