"""Columns of snapshots: compiled kernels give the bytes of the Python code and of Arrow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels import snapshots
from flinkray.kernels.compiled import native
from flinkray.state import HeapKeyedStateBackend, ValueStateDescriptor, heap_tables
from flinkray.state.heap_tables import HeapValueTable
from flinkray.state.value_columns import (
    ArrayColumn,
    EncodedArray,
    TupleColumn,
    ValueColumn,
    column_of,
    concatenated,
    values_of,
)

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with Python code")


class Text(str):
    """No plain text: a snapshot has to keep its type."""


LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
LETTERS = st.one_of(st.text(max_size=5), st.text("a\u20ac", min_size=250, max_size=300))
PLAIN = [LONGS, st.floats(), LETTERS, st.binary(max_size=300)]
OTHERS = [
    st.integers(),
    st.text(st.characters(), max_size=2),
    st.builds(Text),
    st.booleans(),
    st.none(),
    st.lists(LONGS, max_size=2),
]


def kinds() -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """Strategies of values of one type, or of tuples of one length."""
    one = st.sampled_from([*PLAIN, *PLAIN, *OTHERS])
    pairs = st.lists(one, max_size=3).map(lambda parts: st.tuples(*parts))
    nested = st.tuples(one, pairs).map(lambda parts: st.tuples(*parts))
    deep = one.map(lambda kind: st.tuples(st.tuples(st.tuples(st.tuples(st.tuples(kind))))))
    return st.one_of(one, pairs, nested, deep)


@st.composite
def columns(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> list[Any]:
    """Values of one type, of which the last may be of another one."""
    kind, size = draw(kinds()), draw(sizes)
    values = draw(st.lists(kind, min_size=size, max_size=size))
    if values and draw(st.integers(0, 3)) == 0:
        values[-1] = draw(draw(kinds()))
    return values


@contextmanager
def without_kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "native", None)
        yield


def shown(column: ValueColumn) -> Any:
    """Return the structure of a column, with the bytes of its arrays."""
    if isinstance(column, ArrayColumn):
        return column.shape, EncodedArray(column.array).part(0, len(column))
    if isinstance(column, TupleColumn):
        return len(column), [shown(part) for part in column.parts]
    return [(type(value), repr(value)) for value in values_of(column)]


@given(columns(st.integers(0, 150)), st.booleans())
def test_columns_have_the_bytes_of_those_of_the_python_code(values: Any, as_tuple: bool) -> None:
    given_values = tuple(values) if as_tuple else values
    with without_kernels():
        expected = shown(column_of(values))
    assert shown(column_of(given_values)) == expected


def test_order_of_many_texts_is_that_of_few() -> None:
    texts = [str(number) * (number % 7) for number in range(20_000)]
    order = np.random.default_rng(1).permutation(len(texts))
    column = concatenated([column_of(texts[:9_000]), column_of(texts[9_000:])])
    assert values_of(column.take(order)) == [texts[index] for index in order]


@given(st.data(), st.booleans())
def test_snapshot_has_the_same_bytes_without_kernels(data: st.DataObject, windows: bool) -> None:
    """Portions are small here: a later portion may have values that are no columns."""
    keys = data.draw(st.one_of(*(st.lists(kind, unique=True) for kind in (LONGS, st.text("ab")))))
    places = [(key, number % 3) for number, key in enumerate(keys)] if windows else keys
    values = data.draw(columns(st.just(len(places))))

    def written() -> Any:
        backend = HeapKeyedStateBackend()
        table = backend.table(ValueStateDescriptor("state"), windows)
        assert isinstance(table, HeapValueTable)
        for place, value in zip(places, values, strict=True):
            table.put(place, value)
        return backend.capture(1).write()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap_tables, "_PORTION", 4)
        compiled = written()
        with without_kernels():
            expected = written()
    assert compiled == expected


@pytest.mark.parametrize("last", [("text", 1.5), ("text", 2)])
def test_columns_keep_no_references(last: Any) -> None:
    texts = [f"text {number}" for number in range(1_000)]
    values = [*((text, 1.5) for text in texts), last]
    before = sys.getrefcount(texts[0]), sys.getrefcount(values[0])
    for _ in range(100):
        snapshots.columns_of(values, 1)
        list(snapshots.columns_of_entries(dict(zip(texts, values, strict=False)), 300, 1))
    assert (sys.getrefcount(texts[0]), sys.getrefcount(values[0])) == before


def test_list_that_says_another_length_gives_no_columns() -> None:
    class Longer(list[int]):
        def __len__(self) -> int:
            return 10

    assert snapshots.columns_of(Longer([1]), 0) is None
