"""Interval joins of records, and window joins of columns."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.streaming.columnar.window_operators import WindowJoinOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import ProcessJoinFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
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
def test_interval_join_drops_records_that_a_watermark_leaves_without_pairs(
    lower: int, upper: int
) -> None:
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


def test_join_function_that_changes_its_records_does_not_change_the_stored_records() -> None:
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


def test_error_in_a_join_function_names_the_record_that_completed_the_pair() -> None:
    class Fails(Pairs):
        def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
            yield unlike_five(right)

    operator = IntervalJoinOperator(Fails(), 0, 0, BY_FIRST, BY_FIRST)

    def act(h: OperatorHarness) -> None:
        h.process(("k", 1), at=1)
        h.process(("k", 4), ("k", 5), at=1, on=1)

    assert failure(operator, act, keyed=True).record == "('k', 5)"


@pytest.mark.parametrize("keys", [list(range(5)), ["x", "y", None]])
@pytest.mark.parametrize("seed", range(3))
def test_window_join_of_columns_equals_a_join_record_by_record(keys: Any, seed: int) -> None:
    """With random batches, watermarks and late records."""
    chance = random.Random(seed)
    operator = WindowJoinOperator(10, 3, Keys("k"), Keys("key"))
    h = OperatorHarness(operator, keyed=True)
    pairs: Counter[Any] = Counter()
    kept: list[list[Any]] = [[], []]
    watermark = -100
    for step in range(60):
        side = chance.randrange(2)
        rows = [(chance.choice(keys), step * 10 + n, chance.randrange(100)) for n in range(4)]
        h.process_columns(rows_of(["k", "key"][side], rows), on=side)
        start = {row: (row[2] - 3) // 10 for row in rows}
        kept[side] += [row for row in rows if (start[row] + 1) * 10 + 2 > watermark]
        if chance.random() < 0.3:
            watermark += chance.randrange(12)
            for on in (0, 1):
                h.watermark(watermark, on=on)
    for on in (0, 1):
        h.watermark(1000, on=on)
    for first in kept[0]:
        for second in kept[1]:
            same_window = (first[2] - 3) // 10 == (second[2] - 3) // 10
            if same_window and first[0] == second[0] is not None:
                pairs[first[1], second[1]] += 1
    records = h.records()
    assert Counter((row.v, row.v_right) for row, _ in records) == pairs
    assert len(pairs) > 50
    for row, time in records:
        assert time is not None
        assert row.window_start <= row.t < row.window_end == time + 1 == row.window_start + 10


def rows_of(key: str, rows: Any) -> Columns:
    kind = pa.int64() if isinstance(rows[0][0], int) else pa.string()
    names = [key, "v", "t"]
    arrays = [pa.array(values) for values in zip(*rows, strict=True)]
    arrays[0] = pa.array([row[0] for row in rows], kind)
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    return Columns(batch, np.array([row[2] for row in rows], np.int64))


def pairs_of(left: Columns, right: Columns, size: int) -> list[tuple[Any, ...]]:
    h = OperatorHarness(WindowJoinOperator(size, 0, Keys("k"), Keys("k")), keyed=True)
    h.process_columns(left, on=0)
    h.process_columns(right, on=1)
    for on in (0, 1):
        h.watermark(2**60, on=on)
    return [(row.v, row.v_right, row.window_start, time) for row, time in h.records()]


@pytest.mark.parametrize(
    ("left", "right", "size", "pairs"),
    [
        ([0, 1700000000000], [3, 1700000000001], 500, [(0, 0), (1700000000000, 1700000000000)]),
        ([0], [2**32], 1, []),
    ],
)
def test_window_join_does_not_mix_up_windows_that_are_far_apart_in_time(
    left: list[int], right: list[int], size: int, pairs: list[tuple[int, int]]
) -> None:
    """Windows were numbered with 32 bits."""
    sides = [columns(times, k=[1] * len(times), v=times) for times in (left, right)]
    found = pairs_of(sides[0], sides[1], size)
    assert sorted((v, start) for v, _, start, _ in found) == pairs
    assert all(time == start + size - 1 for *_, start, time in found)


def test_zero_and_nan_keys_that_arrow_distinguishes_are_joined() -> None:
    left = columns([1, 1, 1], k=[0.0, float("nan"), 2.0], v=[1, 2, 3])
    right = columns([2, 2, 2], k=[-0.0, float("nan"), None], v=[4, 5, 6])
    assert sorted(pair[:2] for pair in pairs_of(left, right, 10)) == [(1, 4), (2, 5)]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int8(), [-128, 127, 3]),
        (pa.uint64(), [2**64 - 1, 2**63, 0]),
        (pa.bool_(), [True, False, None]),
        (pa.date32(), [1, 2, -3]),
        (pa.timestamp("ns", "UTC"), [1, 2, 3]),
        (pa.decimal128(5, 2), [Decimal("1.5"), Decimal("-1"), Decimal(0)]),
        (pa.large_string(), ["", "a", "b"]),
        (pa.binary(), [b"", b"a", b"b"]),
        (pa.dictionary(pa.int8(), pa.string()), ["c", "b", "a"]),
        (pa.dictionary(pa.int32(), pa.int64()), [7, 8, 9]),
        (pa.uuid(), [bytes(16), bytes(15) + b"1", bytes(15) + b"2"]),
    ],
)
@pytest.mark.parametrize("null", [False, True])
def test_window_join_joins_keys_of_any_type_but_nulls(
    kind: pa.DataType, keys: list[Any], null: bool
) -> None:
    """Also if the dictionaries of two batches differ."""
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    first, second, third = keys
    fourth = None if null else second
    rows = [[(first, 1), (second, 11)], [(fourth, 2)], [(third, 3), (first, 0)], [(fourth, 12)]]
    kept: list[Any] = [[], []]
    for number, batch in enumerate(rows):
        array = pa.array([key for key, _ in batch], kind)
        times = np.array([time for _, time in batch])
        data = pa.RecordBatch.from_arrays([array, pa.array(times)], names=["k", "t"])
        h.process_columns(Columns(data, times), on=number // 2)
        kept[number // 2] += batch
    for on in (0, 1):
        h.watermark(100, on=on)
    assert [(row.t, row.t_right) for row, _ in h.records()] == [
        (mine, theirs)
        for key, mine in sorted(kept[0], key=lambda row: row[1] // 10)
        for other, theirs in kept[1]
        if key == other is not None and mine // 10 == theirs // 10
    ]


@pytest.mark.parametrize("extra", [[[1, 2]], [{"a": 1}], [None]])
def test_rows_of_a_window_join_keep_columns_of_any_type(extra: list[Any]) -> None:
    left = columns([1], k=[1], v=[7], x=pa.array(extra))
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    h.process_columns(left, on=0)
    h.process_columns(left, on=1)
    for on in (0, 1):
        h.watermark(100, on=on)
    ((row, _),) = h.records()
    assert [row.x, row.x_right] == pa.array(extra + extra).to_pylist()


def test_join_result_with_two_columns_of_the_same_name_is_refused() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    h.process_columns(columns([1], k=[1], v=[1], v_right=[2]), on=0)
    h.process_columns(columns([1], k=[1], v=[3]), on=1)
    h.watermark(100, on=0)
    with pytest.raises(StreamError, match="two columns 'v_right'"):
        h.watermark(100, on=1)


@pytest.mark.parametrize("is_restored", [False, True])
def test_columns_with_widening_types_are_joined(is_restored: bool) -> None:
    def fresh(**settings: Any) -> Any:
        operator = WindowJoinOperator(10, 0, Keys("k"), Keys("key"))
        return OperatorHarness(operator, keyed=True, **settings)

    h = fresh()
    h.process_columns(columns([1, 2], k=[1, 2], v=[1, 2**60 + 1], text=pa.nulls(2)))
    h.process_columns(columns([3, 4], k=[2.5, 3.0], v=[0.5, 1.5], text=["x", "y"]))
    if is_restored:
        h = fresh(restore=h.snapshot())
    h.process_columns(columns([1, 2, 3], key=pa.array([1, 2, 3], pa.int16()), w=[10, 20, 30]), on=1)
    h.process_columns(columns([1], key=pa.nulls(1), w=[0.5]), on=1)
    for on in (0, 1):
        h.watermark(100, on=on)
    found = {row.k: (row.v, row.text, row.w) for row in h.values()}
    assert found == {1: (1, None, 10), 2: (2.0**60, None, 20), 3: (1.5, "y", 30)}


def test_integer_and_float_keys_are_joined_only_if_exactly_equal() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("key")), keyed=True)
    h.process_columns(columns([1, 1, 1], k=[2**60, 2**60 + 1, None], v=[1, 2, 3]))
    h.process_columns(columns([1, 1, 1], key=[2.0**60, 0.5, None], w=[4, 5, 6]), on=1)
    for on in (0, 1):
        h.watermark(100, on=on)
    assert [(row.k, row.v, row.w) for row in h.values()] == [(2**60, 1, 4)]


def test_join_refuses_batches_whose_keys_would_be_rounded() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("key")), keyed=True)
    h.process_columns(columns([1], k=[2**60 + 1], v=[1]))
    h.process_columns(columns([1], k=[0.5], v=[1]))
    h.watermark(100, on=1)
    with pytest.raises(StreamError, match=r"batches do not go together: .* cast them before"):
        h.watermark(100)


def test_rows_of_open_join_windows_are_kept_after_a_restore() -> None:
    def fresh(**settings: Any) -> Any:
        operator = WindowJoinOperator(10, 0, Keys("k"), Keys("key"))
        return OperatorHarness(operator, keyed=True, **settings)

    h = fresh()
    h.process_columns(rows_of("k", [(1, 10, 1), (2, 20, 2), (1, 11, 15)]), on=0)
    state = h.snapshot()
    h.process_columns(rows_of("k", [(1, 12, 3)]), on=0)
    again = fresh(restore=state)
    again.process_columns(rows_of("key", [(1, 30, 4), (2, 40, 5), (1, 50, 17)]), on=1)
    for on in (0, 1):
        again.watermark(100, on=on)
    assert sorted((row.v, row.v_right) for row in again.values()) == [(10, 30), (11, 50), (20, 40)]


def test_error_about_a_missing_key_column_names_the_column() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("other")), keyed=True)
    with pytest.raises(StreamError, match="no column 'other'"):
        h.process_columns(rows_of("k", [(1, 1, 1)]), on=1)


def test_rows_without_timestamps_are_refused() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    batch = rows_of("k", [(1, 1, 1)]).batch
    with pytest.raises(StreamError, match="no timestamps"):
        h.process_columns(Columns(batch), on=0)


def test_window_join_joins_rows_with_columns_and_emits_columns() -> None:
    h = OperatorHarness(WindowJoinOperator(10, 0, Keys("k"), Keys("k")), keyed=True)
    h.process(Row(k=1, v=5), Row(k=2, v=6), at=[3, 4])
    h.process_columns(columns([8, 12], k=[1, 1], w=[7, 8]), on=1)
    h.process(Row(k=2, w=9), at=9, on=1)
    for on in (0, 1):
        h.watermark(9, on=on)
    found = sorted((row.as_dict(), time) for row, time in h.records() if row.k == 1)
    window = {"window_start": 0, "window_end": 10}
    assert found == [({"k": 1, "v": 5, "w": 7, **window}, 9)]
    assert all(isinstance(batch, Columns) for batch in h.batches())


def test_late_rows_of_either_input_are_dropped_and_counted() -> None:
    operator = WindowJoinOperator(10, 0, Keys("k"), Keys("k"))
    h = OperatorHarness(operator, keyed=True)
    for on in (0, 1):
        h.watermark(9, on=on)
    for on in (0, 1):
        h.process_columns(columns([9, 10], k=[1, 2]), on=on)
    assert operator._late.get_count() == 2
    for on in (0, 1):
        h.watermark(19, on=on)
    assert [row.k for row in h.values()] == [2]


def test_watermark_of_a_window_join_is_the_lesser_of_both_inputs() -> None:
    h = OperatorHarness(WindowJoinOperator(100, 0, Keys("k"), Keys("k")), keyed=True)
    for on in (0, 1):
        h.process_columns(columns([50], k=[1]), on=on)
    assert_time_is_the_lesser_of_two(h)
    h.finish()
    assert h.output() == []


def test_input_of_a_window_join_that_is_active_again_delays_the_watermark() -> None:
    assert_input_that_comes_back_holds_time_back(
        OperatorHarness(WindowJoinOperator(100, 0, Keys("k"), Keys("k")), keyed=True)
    )
