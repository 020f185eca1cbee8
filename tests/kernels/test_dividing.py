"""Dividing of batches: the compiled kernel gives what Arrow's take gives."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels.compiled import native
from flinkray.kernels.dividing import (
    divided,
    divided_by_arrow,
    divided_lists,
    divided_lists_in_python,
)
from tests.kernels.test_keys import COLUMNS, SMALL

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with Arrow")

NESTED: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.list_(pa.int64()), st.lists(SMALL)),
    (pa.struct({"a": pa.int8()}), st.fixed_dictionaries({"a": SMALL})),
    (pa.map_(pa.string(), pa.int8()), st.just([("a", 1)])),
    (pa.month_day_nano_interval(), st.tuples(SMALL, SMALL, SMALL)),
]


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, Any, Any, int]:
    """Return a batch, which may be a part of a longer one, timestamps, and chosen channels."""
    rows, before = draw(st.integers(0, 30)), draw(st.integers(0, 9))
    kinds = draw(st.lists(st.sampled_from(COLUMNS + NESTED), min_size=1, max_size=4))
    arrays = []
    for kind, values in kinds:
        length = rows + before
        some = values | st.none() if draw(st.booleans()) else values
        arrays.append(pa.array(draw(st.lists(some, min_size=length, max_size=length)), kind))
    names = [f"c{place}" for place in range(len(kinds))]
    fields = [pa.field(n, a.type, metadata={"of": n}) for n, a in zip(names, arrays, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, {"of": "all"}))
    channels = draw(st.sampled_from([1, 2, 3, 4, 5, 300]))
    chosen = draw(st.lists(st.integers(0, channels - 1), min_size=rows, max_size=rows))
    times = np.arange(2 * rows)[::2] if draw(st.booleans()) else None
    return batch.slice(before), times, np.array(chosen, np.int32), channels


@given(batches())
def test_parts_of_a_batch_equal_those_that_arrow_takes(case: Any) -> None:
    batch, times, chosen, channels = case
    parts = list(divided(batch, times, chosen, channels))
    expected = list(divided_by_arrow(batch, times, chosen, channels))
    assert [channel for channel, _, _ in parts] == [channel for channel, _, _ in expected]
    for (_, part, stamps), (_, other, other_stamps) in zip(parts, expected, strict=True):
        part.validate(full=True)
        assert part.schema.equals(other.schema, check_metadata=True)
        for column, same in zip(part.columns, other.columns, strict=True):
            # NaN equals no NaN, so that texts are compared.
            assert column.equals(same) or repr(column.to_pylist()) == repr(same.to_pylist())
            assert column.null_count == same.null_count
        if stamps is None or other_stamps is None:
            assert stamps is other_stamps
        else:
            assert stamps.tolist() == other_stamps.tolist()


def test_large_batch_is_divided_without_the_lock_into_aligned_and_exact_buffers() -> None:
    rows = 50_000
    numbers = np.arange(rows)
    texts = pa.array([None if n % 7 == 0 else "x" * (n % 40) for n in range(rows)])
    batch = pa.record_batch({"n": numbers, "t": texts, "b": pa.array(numbers % 3 == 0)})
    for channels in (2, 10):
        chosen = (numbers * 7919 % 1000 % channels).astype(np.int32)
        for channel, part, times in divided(batch, numbers, chosen, channels):
            mine = np.flatnonzero(chosen == channel)
            assert part.equals(batch.take(pa.array(mine)))
            assert times is not None
            assert times.tolist() == mine.tolist()
            for column in part.columns:
                for buffer in filter(None, column.buffers()):
                    assert buffer.address % 64 == 0
            assert part.column("n").buffers()[1].size == 8 * len(mine)
            assert part.column("t").offset == 0
            letters = sum(len(text or "") for text in part.column("t").to_pylist())
            assert part.column("t").buffers()[2].size == letters


def test_batch_for_one_channel_is_passed_on_without_a_copy() -> None:
    batch, times = pa.record_batch({"n": [1, 2, 3]}), np.arange(3)
    [(channel, part, stamps)] = divided(batch, times, np.full(3, 4, np.int32), 5)
    assert (channel, part is batch, stamps is times) == (4, True, True)


@pytest.mark.parametrize("channels", [2, 9])
@pytest.mark.parametrize("wrong", [-1, 9, 300])
def test_row_with_a_channel_that_does_not_exist_raises_index_error(
    wrong: int, channels: int
) -> None:
    batch = pa.record_batch({"n": [1, 2]})
    with pytest.raises(IndexError, match="channel that is out of range"):
        list(divided(batch, None, np.array([0, wrong], np.int32), channels))


def test_wrong_columns_are_refused_and_nothing_is_read_beyond_them() -> None:
    assert native is not None
    chosen, order, bounds = np.array([0, 1], np.int32), np.empty(2, np.int32), np.empty(3, np.int64)

    def divide(column: Any, allocate: Any = pa.allocate_buffer) -> Any:
        return native.divide(chosen, order, bounds, [column], allocate)

    good = (8, 0, 2, None, None, b"12345678" * 2)
    with pytest.raises(ValueError, match="differ in length"):
        divide((8, 0, 1, None, None, b"12345678"))
    with pytest.raises(ValueError, match="too short"):
        divide((8, 0, 2, None, None, b"12345678"))
    for wrong in ([0, 1, 4], [0, 2, 1], [-1, 0, 1]):
        with pytest.raises(ValueError, match="beyond the data"):
            divide((-4, 0, 2, None, np.array(wrong, np.int32), b"abc"))
    with pytest.raises(ValueError, match="buffer is too short"):
        divide(good, lambda size: bytearray(size - 1))
    with pytest.raises(TypeError):
        divide(good, lambda size: None)
    with pytest.raises(BufferError):
        divide(good, bytes)
    with pytest.raises(TypeError, match="no list"):
        native.divide(chosen, order, bounds, good, bytearray)
    with pytest.raises(ValueError, match="do not fit"):
        native.divide(chosen, order[:1], bounds, [good], bytearray)
    assert [bytes(part[0][1]) for part in divide(good, bytearray)[0]] == [b"12345678"] * 2


@given(st.data(), st.sampled_from([1, 2, 8, 9, 300]))
def test_parts_of_lists_equal_those_of_the_python_code(data: st.DataObject, channels: int) -> None:
    chosen = data.draw(st.lists(st.integers(0, channels - 1)))
    values = [(channel, row) for row, channel in enumerate(chosen)]
    lists = data.draw(st.permutations([values, range(len(chosen)), None, tuple(chosen)]))
    found = list(divided_lists(lists, chosen, channels))
    assert found == list(divided_lists_in_python(lists, chosen, channels))


def test_dividing_lists_keeps_the_reference_counts_right_also_if_it_fails() -> None:
    assert native is not None
    values = [object() for _ in range(100)]
    chosen = [row % 3 for row in range(100)]
    short, wrong = values[:99], [*chosen[:99], 3]
    before = list(map(sys.getrefcount, values))

    class Clears:
        """An index that empties the list of channels while the kernel reads the list."""

        def __index__(self) -> int:
            of_user.clear()
            return 0

    for _ in range(20):
        parts = native.divide_lists(chosen, 3, [values, chosen])
        assert [len(part) for part in parts[0]] == [34, 33, 33]
        del parts
        with pytest.raises(IndexError, match="channel that is out of range"):
            native.divide_lists(wrong, 3, [values])
        with pytest.raises(ValueError, match="differ in length"):
            native.divide_lists(chosen, 3, [values, short])
        with pytest.raises(ValueError, match="no list"):
            native.divide_lists(chosen, 3, [values, None])
        with pytest.raises(ValueError, match="no number of channels"):
            native.divide_lists(chosen, 0, [values])
        with pytest.raises(TypeError):
            native.divide_lists(["a"], 1, [["a"]])
        of_user: list[Any] = [Clears(), 0, 0]
        with pytest.raises(IndexError):
            native.divide_lists(of_user, 1, [[1, 2, 3]])
    gc.collect()
    assert list(map(sys.getrefcount, values)) == before
