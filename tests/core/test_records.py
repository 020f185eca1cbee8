"""Stored records: named by schema and version, read by later versions, refused by earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core import schema
from flinkray.core.errors import StoredFormatError
from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.records import decode_record, encode_record, stored_types
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import schema_named, stored, with_defaults


@pytest.fixture(autouse=True)
def forget_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared in a test is forgotten after it."""
    monkeypatch.setattr(schema, "_by_name", dict(schema._by_name))
    monkeypatch.setattr(schema, "_by_type", dict(schema._by_type))


def declare_again(name: str, cls: type, **others: Any) -> None:
    """As in another version of flinkray, where *cls* is the type of that name."""
    schema._by_name.pop(name, None)
    stored(name, **others)(cls)


@stored("tests.Size")
class Size(Enum):
    """A stored enum."""

    SMALL = 1
    LARGE = 2


@stored("tests.Order")
@message
class Order:
    """A stored message."""

    order_id: JobID
    size: Size
    seconds: float = 0.0
    parts: tuple[Order, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


ORDER = Order(JobID(b"an order, 16 byt"), Size.LARGE, 1.5)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary() | st.sampled_from(Size)
    | st.binary(min_size=16, max_size=16).map(JobID),
    lambda inner: st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(), inner, max_size=4)
    | st.builds(Order, st.just(ORDER.order_id), st.sampled_from(Size), notes=st.dictionaries(
        st.text(), inner, max_size=3)),
    max_leaves=12,
)  # fmt: skip


@given(values)
def test_storable_value_is_read_back_unchanged(value: object) -> None:
    order = Order(ORDER.order_id, Size.SMALL, notes={"value": value})
    assert decode_record(encode_record(order), Order) == order


def test_record_contains_names_of_schemas_and_fields_but_no_module() -> None:
    data = encode_record(ORDER)
    assert stored_types(data) == (
        ("tests.Order", 1, ("order_id", "size", "seconds", "parts", "notes")),
        ("JobID", 1, None),
        ("tests.Size", 1, None),
    )
    assert __name__.encode() not in data
    assert b"flinkray" not in data


def test_moved_renamed_class_with_reordered_fields_reads_old_records(
) -> None:  # fmt: skip
    data = encode_record(ORDER)

    @dataclass(frozen=True)
    class Purchase:
        notes: dict[str, Any]
        parts: tuple[Any, ...]
        seconds: float
        size: Size
        order_id: JobID

    Purchase.__module__ = "somewhere.else"
    declare_again("tests.Order", Purchase)
    assert decode_record(data, Purchase) == Purchase({}, (), 1.5, Size.LARGE, ORDER.order_id)


@pytest.mark.parametrize("last_version", [2, 3])
def test_record_of_version_1_is_read_by_versions_2_and_3(last_version: int) -> None:
    data = encode_record(Order(ORDER.order_id, Size.SMALL, 1.5, parts=(ORDER,)))

    @dataclass(frozen=True)
    class InMilliseconds:
        order_id: JobID
        size: Size
        milliseconds: int
        parts: tuple[Any, ...]
        notes: dict[str, Any]
        urgent: bool = False

    def to_milliseconds(values: dict[str, Any]) -> dict[str, Any]:
        seconds = values.pop("seconds")
        return {**values, "milliseconds": round(seconds * 1000)}

    def to_integers(values: dict[str, Any]) -> dict[str, Any]:
        seconds = values.pop("seconds")
        return {**values, "tenths": round(seconds * 10)}

    def from_tenths(values: dict[str, Any]) -> dict[str, Any]:
        tenths = values.pop("tenths")
        return {**values, "milliseconds": tenths * 100}

    migrations = {1: to_milliseconds} if last_version == 2 else {1: to_integers, 2: from_tenths}
    declare_again(
        "tests.Order",
        InMilliseconds,
        version=last_version,
        migrations=migrations,
    )
    part = InMilliseconds(ORDER.order_id, Size.LARGE, 1500, (), {})
    expected = InMilliseconds(ORDER.order_id, Size.SMALL, 1500, (part,), {})
    assert decode_record(data, InMilliseconds) == expected


def test_renamed_enum_member_is_read_under_its_new_name() -> None:
    data = encode_record(ORDER)

    class NewSize(Enum):
        SMALL = "s"
        HUGE = "h"

    new_names = {"LARGE": "HUGE"}
    declare_again(
        "tests.Size", NewSize, version=2, migrations={1: lambda name: new_names.get(name, name)}
    )
    assert decode_record(data, Order).size.name == "HUGE"


def test_record_of_a_newer_version_is_refused_with_type_and_version() -> None:
    declare_again("tests.Size", Size, version=2, migrations={1: with_defaults})
    data = encode_record(ORDER)
    declare_again("tests.Size", Size)
    with pytest.raises(
        StoredFormatError, match=r"tests\.Size version 2, .* reads versions up to 1: a newer"
    ):
        decode_record(data, Order)


def test_record_with_an_unknown_type_is_refused_with_the_name_of_the_type() -> None:
    @stored("tests.Later")
    @dataclass
    class Later:
        number: int

    data = encode_record(Order(ORDER.order_id, Size.SMALL, notes={"later": Later(1)}))
    del schema._by_name["tests.Later"]
    with pytest.raises(StoredFormatError, match=r"tests\.Later \(version 1\), which .* not know"):
        decode_record(data, Order)


def test_record_with_an_unknown_enum_member_or_field_is_refused() -> None:
    class Longer(Enum):
        SMALL = 1
        LARGE = 2
        HUGE = 3

    @dataclass
    class Wider:
        order_id: JobID
        size: Any
        color: str

    declare_again("tests.Size", Longer)
    huge = encode_record(Order(ORDER.order_id, Longer.HUGE))  # type: ignore[arg-type]
    declare_again("tests.Size", Size)
    with pytest.raises(StoredFormatError, match=r"no tests\.Size: 'HUGE'"):
        decode_record(huge, Order)
    declare_again("tests.Order", Wider)
    wide = encode_record(Wider(ORDER.order_id, Size.SMALL, "red"))
    declare_again("tests.Order", Order)
    with pytest.raises(StoredFormatError, match=r"tests\.Order version 1 with fields .* color"):
        decode_record(wide, Order)


def test_record_of_another_type_is_refused_with_both_types() -> None:
    with pytest.raises(StoredFormatError, match=r"holds a ResourceProfile, not a tests\.Order"):
        decode_record(encode_record(ResourceProfile(1.0)), Order)


class NotDeclared(str):
    """A text for some purpose."""


class NoText(str, Enum):
    """An enum."""

    MEMBER = "member"


def test_text_of_an_undeclared_str_subclass_is_read_as_plain_str() -> None:
    order = Order(ORDER.order_id, Size.SMALL, notes={"name": NotDeclared("TaskExecutor-1")})
    read = decode_record(encode_record(order), Order)
    assert read == order
    assert type(read.notes["name"]) is str


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object: declare it"),
        (NoText.MEMBER, "NoText: declare it"),
        ({1: 2}, "keys must be str"),
        ({1, 2}, "set: declare it"),
        (2**64, "Order"),
        ("\ud800", "surrogates"),
    ],
)
def test_value_that_cannot_be_stored_is_refused_with_its_type(value: object, named: str) -> None:
    with pytest.raises(StoredFormatError, match=named):
        encode_record(Order(ORDER.order_id, Size.SMALL, notes={"deep": (value,)}))


@given(st.binary(max_size=200))
def test_random_bytes_raise_stored_format_error(data: bytes) -> None:
    with pytest.raises(StoredFormatError):
        decode_record(data, Order)


GOOD = encode_record(ORDER)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_damaged_record_raises_only_stored_format_error(place: int, change: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] ^= change
    try:
        decode_record(bytes(damaged), Order)
    except StoredFormatError:
        return


@pytest.mark.parametrize(
    "form",
    [
        ([], msgpack.packb({7: []})),
        ([("tests.Order", 1, ["size"])], msgpack.packb({0: []})),
        ([("tests.Order", 1, None)], msgpack.packb({0: "x"})),
        ([("tests.Order", 1, ["size"])], msgpack.packb({0: [1]})),
        ([("tests.Size", 1, ["size"])], msgpack.packb({0: ["SMALL"]})),
        ([("JobID", 1, None)], msgpack.packb({0: b"short"})),
        ([("JobID", 0, None)], msgpack.packb({0: b"x" * 16})),
        ([("JobID", "1", None)], msgpack.packb({0: b"x" * 16})),
        ([("JobID",)], msgpack.packb(1)),
        ([], msgpack.packb({0: 1, 1: 2})),
        ([], msgpack.packb({b"x": 1})),
        ([], 7),
        (7, b""),
        7,
    ],
)
def test_msgpack_data_that_encodes_no_valid_value_is_refused(form: object) -> None:
    with pytest.raises(StoredFormatError):
        decode_record(msgpack.packb(form), object)


def test_duplicate_schema_name_and_missing_or_extra_migrations_are_refused() -> None:
    with pytest.raises(TypeError, match=r"tests\.Size is declared already"):
        stored("tests.Size")(type("Other", (), {}))
    assert stored("tests.Size")(Size) is Size
    for migrations in ({}, {2: with_defaults}, {0: with_defaults, 1: with_defaults}):
        with pytest.raises(TypeError, match=r"version 2 needs migrations from the versions \[1\]"):
            stored("tests.New", version=2, migrations=migrations)
    assert schema_named("tests.New") is None
