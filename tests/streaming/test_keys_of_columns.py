"""Keys of columns: their numbers, groups, channels and order."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels.aggregates import running_sums, sums_by_group
from flinkray.kernels.numpy_aggregates import stable_order
from flinkray.state.key_encoding import encode_key
from flinkray.state.key_numbers import DENSE_RANGE, KeyNumbers
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.key_sorter import KeySorter
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.partitioners import KeyGroupPartitioner
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation, Types


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


def test_text_and_float_keys_keep_their_assigned_numbers_in_later_batches() -> None:
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


def test_greatest_unsigned_keys_keep_their_assigned_numbers_in_later_batches() -> None:
    table = KeyNumbers()
    greatest = (1 << 64) - 1
    assert table.slots_of(pa.array([greatest, greatest - 3], pa.uint64())).tolist() == [0, 1]
    assert table.slots_of(pa.array([greatest - 3, greatest], pa.uint64())).tolist() == [1, 0]


def test_dictionary_entry_that_occurs_in_no_row_gets_no_key_number() -> None:
    table = KeyNumbers()
    entries = pa.array(["a", "b", "c", "d"])
    for places, slots in [([1, 3, 1], [0, 1, 0]), ([2, 1], [2, 0]), ([0, 1, 2, 3], [3, 0, 2, 1])]:
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), entries)
        assert table.slots_of(column).tolist() == slots
    assert table.keys == ["b", "d", "c", "a"]


CHANNELS = 7
UTC = datetime.timezone.utc
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.float64(): st.floats() | st.integers(-5, 5).map(float),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", "c"]),
    pa.binary(): st.binary(),
    pa.decimal128(10, 2): st.decimals(-999, 999, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "Europe/Berlin"): MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    pa.duration("us"): st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999)),
}


def columns_of(array: pa.Array) -> Columns:
    return Columns(pa.record_batch({"k": array}))


def rows_of(values: list[Any]) -> Block:
    return Block([Row(k=value) for value in values])


def partitioner(key_type: TypeInformation | None = None) -> KeyGroupPartitioner:
    made = KeyGroupPartitioner(Keys("k", key_type))
    made.setup(CHANNELS, 128, 0)
    return made


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_key_has_the_same_channel_and_number_in_rows_and_columns(kind: pa.DataType) -> None:
    @given(st.lists(VALUES[kind] | st.none(), min_size=1))
    def check(values: list[Any]) -> None:
        array = pa.array(values, kind)
        columns = columns_of(array)
        expected = [encode_key(value) for value in array.to_pylist()]

        of_rows = list(partitioner().choose(rows_of(values))[0])
        numbers = KeyNumbers().slots_of(array).tolist()

        assert partitioner().choose_columns(columns).tolist() == of_rows
        assert [encode_key(value) for value in values] == expected
        first = {key: number for number, key in enumerate(dict.fromkeys(expected))}
        assert numbers == [first[key] for key in expected]

    check()


@given(st.lists(st.integers(-5, 5) | st.none(), min_size=1))
def test_whole_numbers_of_any_type_go_to_the_channel_of_the_integer(
    values: list[int | None],
) -> None:
    expected = partitioner().choose_columns(columns_of(pa.array(values, pa.int64()))).tolist()
    for kind in (pa.int8(), pa.float64(), pa.decimal128(22, 1)):
        array = pa.array(values, pa.int64()).cast(kind)
        assert partitioner().choose_columns(columns_of(array)).tolist() == expected


@pytest.mark.parametrize(
    ("key_type", "kind", "values"),
    [
        (Types.INT(), pa.int64(), [0, -1, 7, -(1 << 31)]),
        (Types.LONG(), pa.int16(), [0, -1, 7]),
        (Types.DOUBLE(), pa.int64(), [0, -1, 7]),
        (Types.DOUBLE(), pa.float64(), [0.0, -0.0, 1.5, math.nan]),
        (Types.FLOAT(), pa.float64(), [0.5, 2.0]),
        (Types.BOOLEAN(), pa.bool_(), [True, False]),
        (Types.STRING(), pa.string(), ["a", "中文"]),
    ],
)
def test_rows_and_columns_with_a_declared_key_type_go_to_the_same_channel(
    key_type: TypeInformation, kind: pa.DataType, values: list[Any]
) -> None:
    of_rows = list(partitioner(key_type).choose(rows_of(values))[0])
    of_columns = partitioner(key_type).choose_columns(columns_of(pa.array(values, kind)))
    assert of_columns.tolist() == of_rows


def test_keys_computed_by_an_earlier_key_by_are_computed_anew_by_the_next() -> None:
    values = list(range(20))
    stale = Block([Row(k=value) for value in values], None, [0] * 20)
    assert list(partitioner().choose(stale)[0]) == list(partitioner().choose(rows_of(values))[0])
    alone = KeyGroupPartitioner(Keys("k"))
    alone.setup(1, 128, 0)
    [(_, passed)] = alone.split_block(stale)
    assert passed.keys is None


def test_numpy_and_decimal_keys_go_to_the_channel_of_the_equal_integer() -> None:
    values = [np.int64(3), 3, np.float32(3), decimal.Decimal(3)]
    assert len(set(partitioner().choose(rows_of(values))[0])) == 1


@pytest.mark.parametrize("memory", [1, 3_000, 1 << 30])
def test_records_are_sorted_by_key_and_time_with_any_memory_size(memory: int) -> None:
    chance = random.Random(3)
    sorter = KeySorter(memory)
    given: dict[str, list[Any]] = {}
    for number in range(40):
        keys = [chance.choice("abcdef") for _ in range(5)]
        times = [chance.randrange(10) for _ in range(5)]
        values = [(number, place) for place in range(5)]
        sorter.add(0, Block(values, times), keys)
        for record in zip(keys, times, values, strict=True):
            given.setdefault(record[0], []).append(record[1:])
    assert {1: 40, 1 << 30: 0}.get(memory, sorter.number_of_runs) == sorter.number_of_runs
    assert memory != 3_000 or 5 < sorter.number_of_runs < 40
    found = {key: [(e[1], e[4]) for e in entries] for key, entries in sorter.by_key()}
    assert found == {key: sorted(records) for key, records in given.items()}
    sorter.close()
    assert sorter.number_of_runs == 0


def test_different_keys_with_equal_hashes_are_sorted_into_separate_groups() -> None:
    """ "Aa" and "BB" have the same hash in Java."""
    sorter = KeySorter()
    sorter.add(0, Block([1, 2, 3, 4, 5]), ["Aa", "BB", "Aa", "C#", "BB"])
    found = [(key, [e[4] for e in entries]) for key, entries in sorter.by_key()]
    assert sorted(found) == [("Aa", [1, 3]), ("BB", [2, 5]), ("C#", [4])]
