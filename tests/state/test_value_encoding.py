"""Values as columns of bytes: what is read is what was written, of the same types."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math
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


def test_encoding_keeps_row_kinds_and_the_nan_of_keys() -> None:
    deleted = Row.of_kind(RowKind.DELETE, 1, "a")
    found = read(written([deleted, Row(1, "a"), Row(b=1, a=2)])[0])
    assert found == [deleted, Row(1, "a"), Row(b=1, a=2)]
    assert [row.get_row_kind() for row in found][:2] == [RowKind.DELETE, RowKind.INSERT]
    (nan,) = read(written([NAN])[0])
    assert type(nan) is NaN


def test_types_that_only_pickle_covers_are_named() -> None:
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
        f"{module}.test_types_that_only_pickle_covers_are_named.<locals>.Local",
        f"{module}.Access",
        f"{module}.Labels",
        f"{module}.Lazy",
        "builtins.function",
    }
    assert {form.name for form in encoder.forms} == set()


def test_encoding_keeps_state_beyond_the_fields_of_a_class() -> None:
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
