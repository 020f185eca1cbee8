"""Key groups against the values of SPEC appendix A."""

from __future__ import annotations

import dataclasses
import datetime
import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.key_group_ranges import (
    KeyGroupRange,
    default_max_parallelism,
    key_group_range,
    owner_of,
)
from flinkray.datastream.common import Row
from flinkray.state.key_encoding import UnsupportedKeyError
from flinkray.state.key_group_assignment import (
    KEY_KINDS,
    KeyGroupAssigner,
    _hash_texts,
    hash_array,
    hash_double,
    hash_float,
    hash_long,
    hash_text,
    key_group_of,
    key_groups_of_array,
    murmur,
    murmur_array,
    stable_hash,
)
from flinkray.state.key_values import own_key

APPENDIX = [
    (0, 94), (1, 86), (2, 127), (3, 113), (42, 29), (-1, 94), (10_000_000_000, 109),
    ("a", 81), ("b", 22), ("hello", 35), ("key", 72), ("flink", 98), ("Flink", 127),
    ("中文", 39),
]  # fmt: skip


@pytest.mark.parametrize(("key", "group"), APPENDIX)
def test_key_is_assigned_to_the_same_key_group_as_in_flink(key: object, group: int) -> None:
    assert key_group_of(key, 128) == group
    assert KeyGroupAssigner(128)(key) == group


@pytest.mark.parametrize(
    ("name", "key", "hashed", "group"),
    [
        ("BOOLEAN", True, 1231, 77),
        ("BOOLEAN", 0, 1237, 3),
        ("INT", -1, -1, 80),
        ("INT", 2.0, 2, 127),
        ("LONG", -1, 0, 94),
        ("STRING", "hello", 99162322, 35),
    ],
)
def test_key_of_a_declared_type_is_assigned_to_the_key_group_of_flink(
    name: str, key: object, hashed: int, group: int
) -> None:
    kind = KEY_KINDS[name]
    value = kind.value_of(key)
    assert kind.hash_of(value) == hashed
    assert KeyGroupAssigner(128, kind.hash_of)(value) == group
    assert key_groups_of_array(pa.array([value], kind.arrow), 128, kind.hash_of).tolist() == [group]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("INT", 1 << 31), ("LONG", 1.5), ("LONG", "1"), ("BYTE", -129), ("BOOLEAN", 2),
        ("DOUBLE", "1.5"), ("FLOAT", 1e300), ("STRING", b"a"), ("SHORT", None),
    ],
)  # fmt: skip
def test_key_that_is_not_of_the_declared_type_is_refused(name: str, key: object) -> None:
    with pytest.raises(UnsupportedKeyError, match=f"is no {name}, which is the declared type"):
        KEY_KINDS[name].value_of(key)


def test_hash_codes_of_floats_equal_those_of_java() -> None:
    assert hash_double(1.5) == 1073217536  # Double.valueOf(1.5).hashCode()
    assert hash_double(-0.0) == hash_double(0.0) == 0
    assert hash_float(1.5) == 1069547520  # Float.floatToIntBits(1.5f)
    assert hash_float(math.nan) == 0x7FC00000


def test_hash_codes_of_texts_and_integers_equal_those_of_java() -> None:
    assert hash_text("hello") == 99162322
    assert hash_text("中文") == 646394
    assert hash_long(10_000_000_000) == 1410065410
    assert murmur(-1) == 1982413648  # of a Java int; a Python int is a long


def test_key_groups_of_a_column_equal_those_of_its_values() -> None:
    for values in ([0, 1, -1, 42, 10**10, -(2**62)], ["a", "hello", "中文", ""], [1.5, -0.0, 0.0]):
        expected = [key_group_of(value, 128) for value in values]
        assert key_groups_of_array(pa.array(values), 128).tolist() == expected
        encoded = pa.array(values).dictionary_encode()
        assert key_groups_of_array(encoded, 128).tolist() == expected
    assert key_groups_of_array(pa.array([1, None]), 128).tolist() == [86, key_group_of(None, 128)]
    assert key_groups_of_array(pa.array([7], pa.int16()), 128).tolist() == [key_group_of(7, 128)]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_murmur_hashes_of_an_array_equal_those_of_its_elements(codes: list[int]) -> None:
    assert murmur_array(np.array(codes, np.int32)).tolist() == [murmur(code) for code in codes]


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 400))
def test_every_key_group_has_one_owner(max_parallelism: int, parallelism: int) -> None:
    if parallelism > max_parallelism:
        return
    ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    for group in range(max_parallelism):
        owner = owner_of(group, max_parallelism, parallelism)
        assert [i for i, groups in enumerate(ranges) if group in groups] == [owner]


def test_key_group_ranges_equal_those_of_the_spec_appendix() -> None:
    assert [key_group_range(128, 3, i) for i in range(3)] == [
        KeyGroupRange(0, 42),
        KeyGroupRange(43, 85),
        KeyGroupRange(86, 127),
    ]
    assert [tuple(key_group_range(13, 5, i)) for i in range(5)] == [
        (0, 2), (3, 5), (6, 7), (8, 10), (11, 12),
    ]  # fmt: skip


def test_parallelism_above_the_number_of_key_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="parallelism 5 and max parallelism 4"):
        key_group_range(4, 5, 0)


def test_default_number_of_key_groups_grows_with_the_parallelism() -> None:
    chosen = [default_max_parallelism(p) for p in (1, 85, 86, 171, 172, 341, 342, 1000, 20000)]
    assert chosen == [128, 128, 256, 256, 512, 512, 1024, 2048, 32768]


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: str


def test_equal_keys_of_different_types_have_equal_hashes() -> None:
    assert stable_hash((1, "a")) == stable_hash((True, "a")) != stable_hash(Point(1, "a"))
    assert stable_hash(Point(1, "a")) == stable_hash(Point(1.0, "a"))  # type: ignore[arg-type]
    assert stable_hash(1) == stable_hash(1.0) == stable_hash(True) == stable_hash(np.float32(1))
    assert stable_hash(0.0) == stable_hash(-0.0)
    assert stable_hash(np.int64(7)) == stable_hash(7)
    assert stable_hash(datetime.date(2026, 1, 2)) != stable_hash(datetime.date(2026, 1, 3))
    assert stable_hash(2**70) != stable_hash(2**71)


@dataclasses.dataclass(unsafe_hash=True)
class Open:
    """Has a hash, and can be changed."""

    x: object


@dataclasses.dataclass(frozen=True)
class Noted:
    x: object
    note: list[int] = dataclasses.field(compare=False)


def test_mutable_key_is_copied_before_it_is_stored() -> None:
    given = Open(1)
    kept = own_key(given)
    given.x = 2
    assert kept == Open(1)


def test_mutable_key_inside_another_key_is_copied() -> None:
    inner = Open(1)
    for key in (Noted(inner, []), (inner, 2), Row(inner, 2)):
        kept = own_key(key)
        inner.x = 3
        assert kept != key
        inner.x = 1
        assert kept == key


def test_fields_excluded_from_key_equality_are_copied() -> None:
    given = Noted(1, [1])
    kept = own_key(given)
    given.note.append(2)
    assert kept.note == [1]


def test_immutable_key_is_not_copied() -> None:
    for key in (Point(1, "a"), (1, "a"), frozenset({1}), (1, (2,))):
        assert own_key(key) is key


def test_stable_hash_is_equal_in_another_process() -> None:
    """Python's own hash of a text differs between processes."""
    key = ("hello", 3, (b"x", 2.5), frozenset({"p", "q"}), None)
    program = (
        f"from flinkray.state.key_group_assignment import stable_hash; print(stable_hash({key!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert int(done.stdout) == stable_hash(key)


class CaseInsensitive:
    """Its equality leaves out what it consists of."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CaseInsensitive) and self.text.lower() == other.text.lower()

    def __hash__(self) -> int:
        return hash(self.text.lower())

    def __repr__(self) -> str:
        return f"CaseInsensitive({self.text})"


def test_equal_keys_with_different_parts_are_refused() -> None:
    assign = KeyGroupAssigner(128)
    assert assign(CaseInsensitive("a")) == assign(CaseInsensitive("a"))
    with pytest.raises(UnsupportedKeyError, match=r"\(A\) equals an earlier key and"):
        assign(CaseInsensitive("A"))


texts = st.one_of(st.text(max_size=40), st.text(st.characters(max_codepoint=127), max_size=9))


@given(st.lists(texts, min_size=40, max_size=80), st.integers(0, 5))
def test_hashes_of_a_text_column_equal_those_of_its_texts(values: list[str], cut: int) -> None:
    expected = [hash_text(value) for value in values]
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(values, kind)
        assert hash_array(column).tolist() == expected
        assert hash_array(column.slice(cut)).tolist() == expected[cut:]
        assert hash_array(pa.array(["", *values], kind)).tolist() == [0, *expected]


def test_ascii_texts_of_many_lengths_are_hashed_as_a_whole_column() -> None:
    values = ["x" * (number % 50) + str(number) for number in range(2_000)]
    hashed = _hash_texts(pa.array(values))
    assert hashed is not None
    assert hashed.tolist() == [hash_text(value) for value in values]
    assert _hash_texts(pa.array(["\u00e4", *values])) is None
    assert _hash_texts(pa.array([None, *values])) is None


@pytest.mark.parametrize("length", [0, 1, 2, 12, 40])
def test_column_of_texts_of_equal_length_is_hashed_in_portions(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flinkray.state.key_group_assignment._PORTION", 100)
    values = [f"{number * 7919:0{length}d}"[:length] for number in range(450)]
    hashed = _hash_texts(pa.array(values, pa.large_string())[3:])
    assert hashed is not None
    assert hashed.tolist() == [hash_text(value) for value in values[3:]]


mixed = st.one_of(st.integers(), st.text(max_size=5), st.floats(), st.none(), st.booleans())
surrogates = st.text(st.characters(categories=["Cs"]), max_size=2)


@given(
    st.one_of(
        st.lists(mixed),
        st.lists(st.integers(-(1 << 63), (1 << 63) - 1)),
        st.lists(st.integers()),
        st.lists(texts),
        st.lists(surrogates),
    )
)
def test_key_groups_computed_for_many_keys_equal_those_of_single_keys(keys: list[object]) -> None:
    assign = KeyGroupAssigner(128)
    assert assign.of_all(keys).tolist() == [key_group_of(key, 128) for key in keys]
    numbers = [key for key in keys if type(key) is int]
    assert KeyGroupAssigner(128, hash_long).of_all(numbers).tolist() == [
        key_group_of(key, 128, hash_long) for key in numbers
    ]
