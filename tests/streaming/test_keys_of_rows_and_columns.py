"""Rows and columns agree about keys: where they go, and which of them are one."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.state.key_encoding import encode_key
from flinkray.state.key_numbers import KeyNumbers
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.partitioners import KeyGroupPartitioner
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation, Types

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
