"""Columns of values: put in order, divided, stored and read as what they were."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.state.thread_turns import SHORT_TURN, short_turns, shorten_turns
from flinkray.state.value_columns import (
    ArrayColumn,
    ObjectColumn,
    TupleColumn,
    column_of,
    concatenated,
    divisible,
    values_of,
)
from flinkray.state.value_encoding import (
    UnreadableValuesError,
    ValueDecoder,
    ValueEncoder,
    pack,
    unpack,
)

plain: list[st.SearchStrategy[Any]] = [
    st.text(max_size=5),
    st.text(st.characters(), max_size=3),
    st.binary(max_size=5),
    st.integers(-200, 200),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
]
parts = st.one_of(*plain, st.tuples(plain[0], plain[4]), st.lists(plain[3], max_size=2))
kinds = [*plain, st.tuples(plain[0], plain[3]), st.tuples(plain[2], st.tuples(plain[6])), parts]
values_of_a_kind = st.sampled_from(kinds).flatmap(lambda kind: st.lists(kind, max_size=12))


def typed(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value), [typed(part) for part in value]
    return type(value), repr(value)


def stored(column: Any) -> list[Any]:
    (read,) = unpack(pack(ValueEncoder().encode(column)))
    return ValueDecoder().decode(read)


@settings(max_examples=200, deadline=None)
@given(values_of_a_kind, st.randoms(use_true_random=False))
def test_column_keeps_its_values_when_reordered_sliced_and_stored(
    values: list[Any], random: Any
) -> None:
    column = column_of(values)
    order = list(range(len(values)))
    random.shuffle(order)
    taken = column.take(np.array(order, np.intp))
    assert typed(values_of(taken)) == typed([values[place] for place in order])
    begin = random.randint(0, len(values))
    end = random.randint(begin, len(values))
    wanted = typed([values[place] for place in order[begin:end]])
    assert typed(values_of(taken.slice(begin, end))) == wanted
    assert typed(stored(taken.slice(begin, end))) == wanted
    assert typed(stored(divisible(taken).slice(begin, end))) == wanted
    assert len(taken.slice(begin, end)) == end - begin
    twice = concatenated([column, column_of(values)])
    assert typed(stored(twice)) == typed([*values, *values])


def test_values_that_fit_into_no_array_are_kept_as_objects() -> None:
    assert isinstance(column_of(["a", "b"]), ArrayColumn)
    for values in (["a", None], [1, "a"], [1 << 63], ["\ud800"], [True], [[1]], [(1,), (1, 2)]):
        column = column_of(values)
        assert isinstance(column, ObjectColumn)
        assert column.has_objects
        assert typed(stored(column)) == typed(values)
    pairs = column_of([("a", [1]), ("b", [2])])
    assert isinstance(pairs, TupleColumn)
    assert pairs.has_objects
    assert not column_of([("a", 1), ("b", 2)]).has_objects


def test_columns_of_values_with_equal_types_have_the_same_shape() -> None:
    shapes = [column_of(v).shape for v in (["a"], [b"a"], [1], [1.5], [("a", 1)], [("a",)], [None])]
    assert len(set(shapes)) == len(shapes)
    assert column_of([("a", 1)]).shape == column_of([("b", 2), ("c", 3)]).shape


@pytest.mark.parametrize(
    ("largest", "size"), [(100, 1), (200, 2), (-129, 2), (1 << 31, 8), (-(1 << 31), 4)]
)
def test_each_integer_of_a_column_is_stored_in_the_bytes_of_the_largest(
    largest: int, size: int
) -> None:
    column = column_of([largest] * 1000)
    assert len(pack(ValueEncoder().encode(column))) // 1000 == size
    assert stored(column) == [largest] * 1000


@pytest.mark.parametrize(
    "array",
    [
        ["texts", "<u1", b"\x03", b"ab"],
        ["texts", "<u1", b"\x01", b"\xff"],
        ["texts", "<f8", b"\0" * 8, b""],
        ["numbers", "<c16", b"\0" * 16, b""],
        ["numbers", "<i4", b"\0" * 3, b""],
        ["dates", "<u1", b"", b""],
        ["texts", "<u1", b""],
    ],
)
def test_malformed_array_is_refused(array: list[Any]) -> None:
    with pytest.raises(UnreadableValuesError):
        ValueDecoder().decode([[], [8, *array]])


def test_thread_switch_interval_is_restored_after_the_last_temporary_shortening() -> None:
    usual = sys.getswitchinterval()
    with short_turns():
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(SHORT_TURN)
        assert sys.getswitchinterval() == pytest.approx(SHORT_TURN)
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.parametrize("is_within", [False, True])
def test_permanently_shortened_thread_switch_interval_is_not_restored(is_within: bool) -> None:
    """Also if a temporary shortening ends later."""
    usual = sys.getswitchinterval()
    try:
        if is_within:
            with short_turns():
                shorten_turns(0.001)
                assert sys.getswitchinterval() == pytest.approx(SHORT_TURN)
        else:
            shorten_turns(0.001)
        assert sys.getswitchinterval() == pytest.approx(0.001)
        shorten_turns(0.002)
        assert sys.getswitchinterval() == pytest.approx(0.001)
        with short_turns():
            pass
        assert sys.getswitchinterval() == pytest.approx(0.001)
    finally:
        sys.setswitchinterval(usual)
