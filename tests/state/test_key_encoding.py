"""Which keys are equal, and how that is written down."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pickle
import re
import subprocess
import sys
import uuid
import zoneinfo
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.datastream.common import Row
from flinkray.state.key_encoding import EqualityChecks, UnsupportedKeyError, decode_key, encode_key
from flinkray.state.key_values import as_key

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 7, 1, 12, 0, tzinfo=datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any
    note: str = dataclasses.field(default="", compare=False)


@attrs.frozen
class Letter:
    """Of fields that count by what a function says of them."""

    text: str = attrs.field(eq=str.lower)


@attrs.frozen
class Place:
    name: str
    seen: int = attrs.field(default=0, eq=False)


class Customer(pydantic.BaseModel, frozen=True):
    number: int
    name: str


class Pair(NamedTuple):
    left: Any
    right: Any


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class UserId(str):
    """A text that says what it is."""


class Version:
    """Equality written by hand."""

    def __init__(self, *parts: int) -> None:
        self.parts = list(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))


EQUAL: list[tuple[Any, Any]] = [
    (1, 1.0),
    (1, True),
    (0, -0.0),
    (1, decimal.Decimal("1.00")),
    (0.5, fractions.Fraction(1, 2)),
    (0.5, decimal.Decimal("0.50")),
    (2, complex(2, 0)),
    (1 << 80, float(1 << 80)),
    (1, np.int64(1)),
    (1, np.uint8(1)),
    (1, np.bool_(True)),
    (0.5, np.float32(0.5)),
    (0.5, np.longdouble(0.5)),
    ("a", np.str_("a")),
    ("a", UserId("a")),
    (1, Level.LOW),
    (1, pa.scalar(1, pa.int8())),
    ("a", pa.scalar("a", pa.large_string())),
    ((1, "a"), (1.0, "a")),
    ((1, 2), Pair(1.0, 2)),
    (Point(1, "a", "one note"), Point(True, "a", "another")),
    (Place("x", 1), Place("x", 2)),
    (Customer(number=1, name="x"), Customer(number=1, name="x")),
    (Row(1, "a"), Row(1.0, "a")),
    (Version(1, 2), Version(1, 2)),
    (frozenset({1, "a"}), frozenset({"a", 1.0})),
    (NOON, NOON.astimezone(BERLIN)),
    (NOON, pd.Timestamp(NOON)),
    (NOON.timetz(), datetime.time(14, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))),
    (datetime.datetime(2026, 1, 2), pd.Timestamp(2026, 1, 2)),
    (datetime.datetime(2026, 1, 2), np.datetime64("2026-01-02")),
    (datetime.timedelta(1), pd.Timedelta(days=1)),
    (datetime.timedelta(1), np.timedelta64(24, "h")),
    (PurePosixPath("a/b"), PurePosixPath("a//b")),
    (PurePosixPath("a/b"), PurePosixPath("a", "b")),
    (math.nan, float("nan")),
    (math.nan, np.float64("nan")),
    (math.nan, decimal.Decimal("nan")),
    ((math.nan, 1), (-math.nan, 1)),
    (math.inf, decimal.Decimal("inf")),
    (pd.NaT, np.datetime64("NaT", "ns")),
    (np.datetime64(1, "ns"), pd.Timestamp(1)),
    (np.datetime64(1, "ns"), pa.scalar(1, pa.timestamp("ns"))),
    (pd.Timestamp(1, tz="UTC"), pa.scalar(1, pa.timestamp("ns", "UTC"))),
    (np.timedelta64(1, "ns"), pd.Timedelta(1)),
    (datetime.datetime(2300, 1, 1), np.datetime64("2300-01-01")),
    (datetime.datetime(9999, 1, 1), np.datetime64("9999-01-01T00")),
    (datetime.timedelta(200_000), np.timedelta64(200_000, "D")),
    (Access.READ | Access.WRITE, Access.WRITE | Access.READ),
]  # fmt: skip

DIFFERENT: list[Any] = [
    None, 0, 1, -1, 255, 256, -256, 1 << 64, -(1 << 64), 0.5, -0.5, 1e-300, 0.1,
    decimal.Decimal("0.1"), fractions.Fraction(1, 3), 1j, math.nan, math.inf, -math.inf,
    "", "a", "a\x00", "a\x00\xff", "ab", "\ud800", "1", b"", b"a", b"a\x00", b"1",
    (), (1,), (1, 1), ((1,), 1), (1, (1,)), ("a", "b"), ("ab", ""), ("", "ab"), (None,),
    frozenset(), frozenset({1}), Point(1, 2), Point(2, 1), Place("x"), Customer(number=1, name="x"),
    Row(1, 2), Row(x=1, y=2), Version(1), Color.RED, Color.BLUE, Access.READ, Color, Point,
    datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2), NOON, NOON.time(),
    NOON.timetz(), datetime.timedelta(1), pd.Timestamp(1),
    pd.Timestamp(2), pd.NaT, uuid.UUID(int=1), PurePosixPath("a"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_keys_have_the_same_encoding(one: Any, other: Any) -> None:
    assert encode_key(one) == encode_key(other)


def test_different_keys_have_different_encodings() -> None:
    encodings = [encode_key(key) for key in DIFFERENT]
    assert len(set(encodings)) == len(DIFFERENT)


HERE = "20" + b"tests.state.test_key_encoding".hex() + "00"
ROWS = "20" + b"flinkray.streaming.records.row".hex() + "00"


@pytest.mark.parametrize(
    ("key", "encoding"),
    [
        (None, "01"),
        (0, "108000"),
        (-256, "107ffdfeff"),
        (1 << 64, "108009010000000000000000"),
        (0.1, "11bfb999999999999a"),
        (math.nan, "14"),
        (fractions.Fraction(1, 3), "121080010110800103"),
        (1j, "1310800010800101"),
        ("a\x00ä", "206100ffc3a400"),
        (b"\x00", "2100ff00"),
        ((1, "a", ()), "3010800101206100300000"),
        (frozenset({1, 2}), "31108001011080010200"),
        (datetime.date(2026, 1, 2), "401080030b4922"),
        (datetime.datetime(2026, 1, 2), "421080081886c0e67f490000"),
        (NOON, "4310800818be28a6f37c8000"),
        (NOON.time(), "411080050a0eebb000108000"),
        (datetime.timedelta(1), "441080064e94914f0000"),
        (pd.NaT, "45"),
        (uuid.UUID(int=1), "50" + 15 * "00" + "01"),
        (
            PurePosixPath("/a"),
            f"605220{b'pathlib'.hex()}0020{b'PurePosixPath'.hex()}0030202f002061000000",
        ),
        (Color.RED, f"5152{HERE}20{b'Color'.hex()}0020{b'RED'.hex()}00"),
        (Access.READ, f"5152{HERE}20{b'Access'.hex()}0010800101"),
        (Point, f"52{HERE}20{b'Point'.hex()}00"),
        (Point(1, 2), f"6052{HERE}20{b'Point'.hex()}00108001011080010200"),
        (
            Row(1, 2),
            f"6052{ROWS}20{b'Row'.hex()}0052{ROWS}20{b'_rebuild'.hex()}00"
            f"3001611080010110800102005152{ROWS}20{b'RowKind'.hex()}0020{b'INSERT'.hex()}00"
            "0001010100",
        ),
    ],
)
def test_encodings_of_keys_never_change(key: Any, encoding: str) -> None:
    """Savepoints contain these encodings, and the key group of a key is computed from them."""
    assert encode_key(key).hex() == encoding


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False)
    | st.times(timezones=st.none() | st.just(datetime.timezone.utc))
    | st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))
    | st.uuids()
)
KEYS = st.recursive(
    ATOMS,
    lambda keys: st.lists(keys, max_size=3).map(tuple) | st.frozensets(keys, max_size=3),
    max_leaves=20,
)


@given(KEYS)
def test_key_is_equal_after_encoding_and_decoding(key: Any) -> None:
    decoded = decode_key(encode_key(key))
    assert encode_key(decoded) == encode_key(key)
    assert decoded == key or "nan" in repr(key)


@given(KEYS, KEYS)
def test_encodings_are_equal_exactly_if_the_keys_are_equal(one: Any, other: Any) -> None:
    if "nan" not in repr((one, other)):
        assert (encode_key(one) == encode_key(other)) == (one == other)


@pytest.mark.parametrize(
    "values",
    [
        st.integers(),
        st.binary(),
        st.text(st.characters(max_codepoint=0xFFFF)),
        st.lists(st.integers()).map(tuple),
        st.lists(st.binary()).map(tuple),
        st.tuples(st.binary(), st.integers()),
    ],
)
def test_encodings_have_the_same_order_as_their_keys(values: st.SearchStrategy[Any]) -> None:
    @given(values, values)
    def check(one: Any, other: Any) -> None:
        assert (encode_key(one) < encode_key(other)) == (one < other)

    check()


@given(st.binary(max_size=20))
def test_arbitrary_bytes_decode_to_a_key_or_raise_value_error(data: bytes) -> None:
    try:
        key = decode_key(data)
    except ValueError:
        return
    assert encode_key(key) is not None


def test_encodings_are_the_same_in_another_process_with_another_hash_seed() -> None:
    key = "('hello', 3, (b'x', 2.5), frozenset({'p', 'q', 'r'}), None, 1 / 3)"
    program = f"from flinkray.state.key_encoding import encode_key; print(encode_key({key}).hex())"
    ran = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        ).stdout
        for seed in ("1", "77")
    ]
    assert ran[0] == ran[1]


class Identity:
    pass


class Unhashable:
    def __eq__(self, other: object) -> bool:
        return True


@dataclasses.dataclass
class Mutable:
    x: int


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ([1], r"a builtins.list cannot be a key: it may change .* use a tuple"),
        ((1, [2]), r"a builtins.list cannot be a key"),
        ({}, "dict"),
        ({1}, "set"),
        (bytearray(b"x"), "bytearray"),
        (np.zeros(2), "ndarray"),
        (Identity(), "Identity cannot be a key: it has no equality of its own"),
        (Unhashable(), "Unhashable cannot be a key: it may change, and has no hash"),
        (Mutable(1), "Mutable cannot be a key: it may change, and has no hash"),
        (Point(1, [2]), r"a builtins.list cannot be a key"),
        (np.timedelta64(1, "Y"), "has no length in nanoseconds"),
        (np.datetime64(1, "ps"), "has no length in nanoseconds"),
        (pa.scalar(1, pa.time64("ns")), "it has nanoseconds; cast it to microseconds"),
        (decimal.Decimal("1e10000000"), "more than 5000 digits"),
        (decimal.Decimal("1e-10000000"), "more than 5000 digits"),
        (re.compile("a"), "re.Pattern cannot be a key"),
        (np.zeros(1).view([("a", float)])[0], "numpy.void cannot be a key"),
        (lambda: 1, "function cannot be a key: it has no equality of its own"),
        pytest.param(1 << (8 * 40_000), "bytes, more than 32767", id="a huge integer"),
    ],
)
def test_value_that_cannot_be_a_key_is_refused_with_its_type(key: Any, reason: str) -> None:
    with pytest.raises(UnsupportedKeyError, match=reason):
        encode_key(key)


def test_error_about_an_invalid_part_of_a_key_names_the_type_of_the_key() -> None:
    with pytest.raises(UnsupportedKeyError, match=r"Point .*: of what is in it, a bui"):
        encode_key(Point(1, [2]))


@dataclasses.dataclass(frozen=True)
class Written:
    """A dataclass whose equality somebody has written: it is about less than the fields."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and self.text.lower() == other.text.lower()

    def __hash__(self) -> int:
        return hash(self.text.lower())


@dataclasses.dataclass(frozen=True)
class Marked(Point):
    """An equality that is about more than the fields that are compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marked) and (self.x, self.note) == (other.x, other.note)

    def __hash__(self) -> int:
        return hash(self.x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Letter("a"), Letter("A")),
        (Written("a"), Written("A")),
        ((1, Written("a")), (1, Written("A"))),
        (Point(1, Written("a")), Point(1, Written("A"))),
        (frozenset({Written("a")}), frozenset({Written("A")})),
        (range(0, 3, 2), range(0, 4, 2)),
    ],
)
def test_key_that_equals_an_earlier_key_with_different_parts_is_refused(
    one: Any, other: Any
) -> None:
    assert one == other
    checks = EqualityChecks(10)
    assert checks.has_to_look_at(one)
    assert checks.has_to_look_at(one)
    with pytest.raises(UnsupportedKeyError, match="equals an earlier key and consists of other"):
        checks.has_to_look_at(other)


@pytest.mark.parametrize("key", [1, "a", (1, 2), Point(1, 2), Place("a"), Color.RED, NOON])
def test_keys_whose_classes_define_no_equality_skip_the_equality_check(key: Any) -> None:
    assert not EqualityChecks(10).has_to_look_at(key)


def test_key_encoding_has_fields_with_compare_false_that_a_custom_eq_compares() -> None:
    assert encode_key(Marked(1, 2, "one")) != encode_key(Marked(1, 2, "other"))


def test_self_containing_key_is_refused() -> None:
    version = Version()
    version.parts.append(version)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedKeyError, match="nested more than 64 levels deep"):
        encode_key(version)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pd.NA, "NAType cannot be a key: it stands for a value that is missing.*use None"),
        ((1, np.zeros(2)), "numpy.ndarray cannot be a key"),
        (pd.Series([1]), "Series cannot be a key: it may change, and has no hash"),
        (complex("nan"), "complex cannot be a key: it holds NaN"),
        (np.complex64("nan"), "complex cannot be a key: it holds NaN"),
        (pa.scalar(10**18, pa.timestamp("s")), "out of the range"),
    ],
)
def test_key_that_could_not_be_found_again_in_state_is_refused_with_the_reason(
    value: Any, reason: str
) -> None:
    with pytest.raises(UnsupportedKeyError, match=reason):
        as_key(value)


def test_key_that_is_nested_too_deeply_is_refused_before_it_is_encoded() -> None:
    nested: Any = ()
    for _ in range(5000):
        nested = (nested,)
    with pytest.raises(UnsupportedKeyError, match="nested too deeply"):
        as_key(nested)


@given(KEYS)
def test_stored_copy_of_a_key_equals_the_original_and_is_found_after_pickling(key: Any) -> None:
    kept = as_key(key)
    assert encode_key(kept) == encode_key(key)
    assert {kept: 1}[as_key(pickle.loads(pickle.dumps(key)))] == 1
