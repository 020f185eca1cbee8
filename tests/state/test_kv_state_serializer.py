"""What travels when state is queried, and what is made of bytes that are something else."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.kv_states import MalformedKvStateError
from flinkray.datastream import Row, Types
from flinkray.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateError,
    StateMigrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.state.kv_state_serializer import (
    KvStateSerializer,
    deserialize_keys_and_namespace,
    serialize_keys_and_namespace,
)
from flinkray.streaming.windowing.window import TimeWindow


@dataclass(frozen=True)
class Place:
    country: str
    number: int


VALUES = [7, "text", (1, "two"), Place("DE", 3), datetime.date(2026, 1, 2), None]
LIST: StateDescriptor = ListStateDescriptor("elements")
MAP: StateDescriptor = MapStateDescriptor("entries")


@pytest.mark.parametrize("key", VALUES, ids=str)
@pytest.mark.parametrize("namespace", [None, TimeWindow(0, 10), "n"], ids=str)
def test_keys_and_namespace_of_a_query_are_equal_after_serialization(
    key: Any, namespace: Any
) -> None:
    sent = serialize_keys_and_namespace([key, key], namespace)
    assert deserialize_keys_and_namespace(sent) == ([key, key], namespace)


@pytest.mark.parametrize("namespace", [None, TimeWindow(0, 10)], ids=str)
def test_truncated_or_extended_bytes_of_keys_are_refused(namespace: Any) -> None:
    """QS-13: an OSError is raised, and no other error."""
    sent = serialize_keys_and_namespace([Place("DE", 3), Place("FR", 4)], namespace)
    for end in range(len(sent)):
        with pytest.raises(OSError, match="bytes are no keys"):
            deserialize_keys_and_namespace(sent[:end])
    for more in (b"\x00", b"\xc0", sent):
        with pytest.raises(MalformedKvStateError, match="bytes are no keys"):
            deserialize_keys_and_namespace(sent + more)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_as_keys_and_namespace(data: bytes) -> None:
    """QS-13."""
    with pytest.raises((MalformedKvStateError, StateMigrationError)):
        deserialize_keys_and_namespace(data)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_of_a_query_answer_are_equal_after_serialization(value: Any) -> None:
    serializer = KvStateSerializer(ValueStateDescriptor("value"))
    assert KvStateSerializer(None).deserialize_one(serializer.serialize([value])) == value


def test_truncated_or_extended_bytes_of_an_answer_are_refused() -> None:
    """QS-13."""
    for descriptor, contents in ((LIST, [1, "two"]), (MAP, {"a": 1}), (None, Place("DE", 3))):
        serializer = KvStateSerializer(descriptor)
        sent = serializer.serialize([contents])
        assert serializer.deserialize_one(sent) == contents
        for end in range(1, len(sent)):
            with pytest.raises(OSError, match="bytes are no answer"):
                serializer.deserialize_one(sent[:end])
        for more in (b"\x00", sent):
            with pytest.raises(OSError, match="bytes are no answer"):
                serializer.deserialize_one(sent + more)
        with pytest.raises(OSError, match="2 values in place of one"):
            serializer.deserialize_one(serializer.serialize([contents, contents]))


def test_empty_query_answer_is_read_as_an_empty_list_or_map() -> None:
    """QS-13."""
    assert KvStateSerializer(LIST).deserialize_one(b"") == []
    assert KvStateSerializer(MAP).deserialize_one(b"") == {}
    with pytest.raises(OSError, match="no answer"):
        KvStateSerializer(ValueStateDescriptor("value")).deserialize_one(b"")


def test_query_answer_with_a_value_that_cannot_be_stored_raises_an_error() -> None:
    """QS-09."""
    with pytest.raises(StateError, match="generator cannot be stored"):
        KvStateSerializer(None).serialize([(n for n in range(3))])


def test_query_with_another_declared_type_is_refused() -> None:
    stored = KvStateSerializer(ValueStateDescriptor("v", Types.LONG())).serialize([1])
    reader = KvStateSerializer(ValueStateDescriptor("v", Types.STRING()))
    with pytest.raises(StateMigrationError, match="stored as Long and is asked for as String"):
        reader.deserialize(stored)


def test_query_may_declare_other_fields_of_a_row() -> None:
    def declared(*names: str) -> StateDescriptor:
        types = [Types.LONG()] * len(names)
        return ValueStateDescriptor("row", Types.ROW_NAMED(list(names), types))

    stored = KvStateSerializer(declared("a", "b")).serialize([Row(a=1, b=2)])
    assert KvStateSerializer(declared("b", "c")).deserialize(stored) == [Row(b=2, c=None)]


def test_query_answer_from_state_with_a_time_to_live_contains_the_plain_value() -> None:
    expiring: StateDescriptor = ValueStateDescriptor("v", Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(10).build())
    stored = KvStateSerializer(expiring).serialize([1])
    assert KvStateSerializer(ValueStateDescriptor("v", Types.LONG())).deserialize(stored) == [1]


def test_copied_serializer_of_queryable_state_has_its_own_writer() -> None:
    """QS-08."""
    serializer = KvStateSerializer(LIST)
    copied = serializer.copy()
    assert copied.serialize([[1]]) == serializer.serialize([[1]])
    assert copied._writer is not serializer._writer


@pytest.mark.parametrize("namespace", [[0, 10], {"a": 1}, ([0],)], ids=str)
def test_namespace_that_cannot_be_hashed_is_refused(namespace: Any) -> None:
    with pytest.raises(MalformedKvStateError, match="no keys with a namespace"):
        deserialize_keys_and_namespace(serialize_keys_and_namespace(["k"], namespace))


def test_damaged_decimal_in_a_queried_key_is_refused() -> None:
    """The text of the decimal 1.2 is cut so that it is no number."""
    decimal = b"\x92\x92\x90\x93\x02\xa7Decimal\x92\x00\x91\xa31.\x13\x92\x90\x92\x00\x90"
    with pytest.raises(MalformedKvStateError, match="no keys with a namespace"):
        deserialize_keys_and_namespace(decimal)
