"""Values as bytes, one by one and as columns."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math
import sys
import uuid
import zoneinfo
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.state.errors import StateError
from flinkray.state.key_encoding import NAN, NaN
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
from flinkray.streaming.records.row import Row, RowKind


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Nothing(NamedTuple):
    pass


@dataclass
class Order:
    number: int
    lines: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Price:
    amount: decimal.Decimal
    currency: str = "EUR"


@dataclass
class Lazy:
    number: int

    @cached_property
    def double(self) -> int:
        return 2 * self.number


@dataclass
class Labels(dict[str, int]):
    name: str = ""


@dataclass
class SaysHow:
    """Has a part that is not to be stored."""

    number: int
    cache: int = 0

    def __getstate__(self) -> dict[str, int]:
        return {"number": self.number, "cache": -1}


class Slotted:
    __slots__ = ("hidden",)


@dataclass
class OfSlotted(Slotted):
    __slots__ = ("number",)
    number: int


class Extended(Point):
    """A named tuple that may have attributes besides."""


class Plain:
    """Nothing covers it but pickle."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


def written(values: list[Any]) -> tuple[bytes, ValueEncoder]:
    encoder = ValueEncoder()
    return pack(encoder.encode(values)), encoder


def read(data: bytes) -> list[Any]:
    (column,) = unpack(data)
    return ValueDecoder().decode(column)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types in every place."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return math.copysign(1, left) == math.copysign(1, right) and (
            left == right or (math.isnan(left) and math.isnan(right))
        )
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, Order):
        return same([left.number, left.lines], [right.number, right.lines])
    if isinstance(left, Row):
        return left._fields == right._fields and same(list(left), list(right))
    return bool(left == right)


zones = st.sampled_from(
    [
        None,
        datetime.timezone.utc,
        datetime.timezone(datetime.timedelta(hours=2), "two"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
    ]
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs"]), max_size=2),
    st.binary(),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from(Color),
    st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.builds(Price, st.decimals(allow_nan=False), st.text()),
)
plain_values = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict),
        st.frozensets(st.integers(), max_size=3),
        st.sets(st.text(max_size=2), max_size=3),
        st.builds(Order, st.integers(), st.lists(inner, max_size=2)),
        st.lists(inner, max_size=3).map(lambda parts: Row(*parts)),
        inner.map(lambda part: Row(b=part, a=1)),
        st.builds(Plain, st.integers()),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(plain_values, max_size=6))
def test_values_survive_encoding_and_decoding(values: list[Any]) -> None:
    found = read(written(values)[0])
    assert len(found) == len(values)
    assert all(map(same, found, values)), (found, values)


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        -(1 << 200),
        collections.deque([1, [2]], maxlen=5),
        collections.defaultdict(list, {"a": [1]}),
        collections.defaultdict(None, {1: 2}),
        collections.Counter("abca"),
        bytearray(b"ab"),
        range(3, 10, 2),
        Nothing(),
        int,
        np.int32(7),
        np.float64(0.5),
        np.datetime64("2026-11-23T22:00", "ns"),
        datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        decimal.Decimal("1.50"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        ((), []),
        [(1,), (1, 2)],
        Row(),
    ],
    ids=repr,
)
def test_values_of_many_types_are_encoded_without_pickle(value: Any) -> None:
    data, encoder = written([value, [value], value])
    found = read(data)
    assert same(found, [value, [value], value])
    assert encoder.pickled == set()
    if hasattr(value, "fold"):
        assert found[0].fold == value.fold


def test_decoded_numpy_arrays_are_writable() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    data, encoder = written([array, np.array(["2026"], "M8[D]")])
    found, days = read(data)
    found[0, 0] = 7
    assert (found.dtype, found.tolist()) == (np.int16, [[7, 1, 2], [3, 4, 5]])
    assert days.dtype == "M8[D]"
    assert encoder.pickled == set()


def test_encoding_keeps_the_kind_of_a_row_and_the_type_of_a_nan_key() -> None:
    deleted = Row.of_kind(RowKind.DELETE, 1, "a")
    found = read(written([deleted, Row(1, "a"), Row(b=1, a=2)])[0])
    assert found == [deleted, Row(1, "a"), Row(b=1, a=2)]
    assert [row.get_row_kind() for row in found][:2] == [RowKind.DELETE, RowKind.INSERT]
    (nan,) = read(written([NAN])[0])
    assert type(nan) is NaN


def test_encoder_lists_the_types_that_it_had_to_pickle() -> None:
    @dataclass
    class Local:
        number: int

    lazy = Lazy(1)
    assert lazy.double == 2
    labels = Labels("named")
    labels["a"] = 1
    values = [Plain(1), Local(2), Access.READ | Access.WRITE, labels, lazy, lambda: 5]
    data, encoder = written(values)
    found = read(data)
    assert found[:1] == [Plain(1)]
    assert found[1].number == 2
    assert found[2] == Access.READ | Access.WRITE
    assert (dict(found[3]), found[3].name) == ({"a": 1}, "named")
    assert found[4].__dict__ == lazy.__dict__
    assert found[5]() == 5
    module = __name__
    assert encoder.pickled == {
        f"{module}.Plain",
        f"{module}.test_encoder_lists_the_types_that_it_had_to_pickle.<locals>.Local",
        f"{module}.Access",
        f"{module}.Labels",
        f"{module}.Lazy",
        "builtins.function",
    }
    assert {form.name for form in encoder.forms} == set()


def test_encoding_keeps_attributes_and_custom_state_beyond_the_fields_of_a_class() -> None:
    """Covers __getstate__ of a class, slots of a base class, and attributes of a tuple."""
    slotted, extended = OfSlotted(1), Extended(1.0, 2.0)
    slotted.hidden = 5  # type: ignore[attr-defined]
    extended.note = "kept"  # type: ignore[attr-defined]
    data, encoder = written([SaysHow(1, 7), slotted, extended])
    says_how, of_slots, point = read(data)
    assert (says_how.number, says_how.cache) == (1, -1)
    assert (of_slots.number, of_slots.hidden) == (1, 5)
    assert (point, point.note) == ((1.0, 2.0), "kept")
    assert len(encoder.pickled) == 3


def test_deeply_nested_and_self_containing_values_are_encoded() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    loop: list[Any] = [1]
    loop.append(loop)
    found, again = read(written([deep, loop])[0])
    assert found == deep
    assert again[1][1][1][0] == 1


def test_value_that_cannot_be_stored_raises_an_error_with_its_type() -> None:
    with pytest.raises(StateError, match=r"generator cannot be stored.*instead"):
        written([(number for number in range(3))])


def test_malformed_bytes_raise_unreadable_values_error() -> None:
    data, _ = written([Order(1, ["a"]), Order(2), {"a": (1, 2)}, datetime.date(2026, 1, 1)])
    for place in range(len(data)):
        with pytest.raises(UnreadableValuesError):
            read(data[:place] or b"\xc1")
    assert [len(values) for values in map(ValueDecoder().decode, unpack(data + data))] == [4, 4]


def test_plain_integers_are_encoded_without_a_call_for_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """msgpack writes a group of texts and numbers in one piece."""
    calls: list[Any] = []
    monkeypatch.setattr("flinkray.state.value_encoding._pack_integer", calls.append)
    data, _ = written(list(range(1000)))
    assert len(data) < 3_000
    assert calls == []


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


def test_columns_of_values_with_equal_types_can_be_concatenated() -> None:
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
