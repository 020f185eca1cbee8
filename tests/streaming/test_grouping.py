"""Arithmetic by group on arrays, and the numbers that keys are given."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flinkray.state.key_numbers import DENSE_RANGE, KeyNumbers
from flinkray.streaming.columnar.grouping import running_sums, stable_order, sums_by_group


def test_integer_sums_above_two_to_the_53_are_exact() -> None:
    values = np.array([2**53, 1, 1, -(2**62), 2**62 - 1, 3], np.int64)
    slots = np.array([0, 0, 0, 1, 1, 1], np.int32)
    assert sums_by_group(slots, values, 2).tolist() == [2**53 + 2, 2]


def test_large_numbers_of_one_group_do_not_round_sums_of_another_group() -> None:
    slots = np.array([0, 1, 0, 1], np.int32)
    values = np.array([1e18, 0.1, 1e18, 0.2])
    running = running_sums(slots, values, np.zeros(2))
    assert running.tolist() == [1e18, 0.1, 2e18, 0.1 + 0.2]


def test_running_sums_of_long_and_short_groups_equal_sequential_sums() -> None:
    rng = np.random.default_rng(7)
    slots = np.concatenate([np.zeros(2000, np.int32), rng.integers(0, 50, 3000, np.int32)])
    values = rng.random(5000)
    expected = np.empty(5000)
    totals = dict.fromkeys(range(50), 0.0)
    for place, (slot, value) in enumerate(zip(slots.tolist(), values.tolist(), strict=True)):
        totals[slot] += value
        expected[place] = totals[slot]
    assert np.array_equal(running_sums(slots, values, np.zeros(50)), expected)


def test_stable_sort_by_key_number_supports_numbers_above_sixteen_bits() -> None:
    slots = np.array([70000, 1, 70000, 65537, 1], np.int32)
    assert stable_order(slots).tolist() == [1, 4, 3, 0, 2]


def test_keys_get_numbers_in_order_of_arrival_whatever_their_range() -> None:
    table = KeyNumbers()
    assert table.slots_of(pa.array([5, 3, 5, 9])).tolist() == [0, 1, 0, 2]
    assert table.slots_of(pa.array([3, 5 + DENSE_RANGE, -4])).tolist() == [1, 3, 4]
    assert table.slots_of(pa.array([5, None, 9])).tolist() == [0, 5, 2]
    assert table.slots_of(pa.array([-4, 10, 5])).tolist() == [4, 6, 0]
    assert table.keys == [5, 3, 9, 5 + DENSE_RANGE, -4, None, 10]


def test_text_and_float_keys_have_the_same_numbers_in_later_batches() -> None:
    texts = KeyNumbers()
    assert texts.slots_of(pa.array(["b", "a", "b"])).tolist() == [0, 1, 0]
    assert texts.slots_of(pa.array(["a", "b"])).tolist() == [1, 0]
    assert texts.slots_of(pa.array(["a", None, "c", "b"])).tolist() == [1, 2, 3, 0]
    assert texts.slots_of(pa.array([None, "c"], pa.string())).tolist() == [2, 3]
    floats = KeyNumbers()
    assert floats.slots_of(pa.array([float("nan"), 1.0])).tolist() == [0, 1]
    assert floats.slots_of(pa.array([1.0, float("nan"), -0.0, 0.0])).tolist() == [1, 0, 2, 2]
    assert len(floats) == 3


def test_sum_of_millions_of_large_integers_in_a_batch_is_exact() -> None:
    number, value = 3 << 20, (1 << 40) + (1 << 32) - 1
    values, slots = np.full(number, value, np.int64), np.zeros(number, np.int32)
    assert sums_by_group(slots, values, 1).tolist() == [number * value]


@pytest.mark.parametrize(
    ("narrow", "least", "other"), [(pa.int8(), -100, 868), (pa.int16(), -20_000, 34_466)]
)
def test_keys_of_a_narrow_integer_type_get_different_numbers(
    narrow: pa.DataType, least: int, other: int
) -> None:
    """The difference of two keys may overflow their type."""
    table = KeyNumbers()
    assert table.slots_of(pa.array([least, -least], narrow)).tolist() == [0, 1]
    assert table.slots_of(pa.array([other, -least, least], pa.int64())).tolist() == [2, 1, 0]
    assert table.keys == [least, -least, other]


@pytest.mark.parametrize("unsigned", [pa.uint8(), pa.uint32(), pa.uint64()])
def test_unsigned_keys_after_negative_keys_get_different_numbers(unsigned: pa.DataType) -> None:
    table = KeyNumbers()
    assert table.slots_of(pa.array([-5, 7])).tolist() == [0, 1]
    assert table.slots_of(pa.array([200, 7], unsigned)).tolist() == [2, 1]
    assert table.slots_of(pa.array([-5, 200])).tolist() == [0, 2]


def test_greatest_unsigned_keys_have_the_same_numbers_in_later_batches() -> None:
    table = KeyNumbers()
    greatest = (1 << 64) - 1
    assert table.slots_of(pa.array([greatest, greatest - 3], pa.uint64())).tolist() == [0, 1]
    assert table.slots_of(pa.array([greatest - 3, greatest], pa.uint64())).tolist() == [1, 0]


def test_dictionary_entry_that_occurs_in_no_row_gets_no_number() -> None:
    table = KeyNumbers()
    entries = pa.array(["a", "b", "c", "d"])
    for places, slots in [([1, 3, 1], [0, 1, 0]), ([2, 1], [2, 0]), ([0, 1, 2, 3], [3, 0, 2, 1])]:
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), entries)
        assert table.slots_of(column).tolist() == slots
    assert table.keys == ["b", "d", "c", "a"]
