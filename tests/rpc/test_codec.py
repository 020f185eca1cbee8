"""What may travel and what may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import Enum
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.errors import (
    FencingTokenError,
    FrameTooLargeError,
    RemoteError,
    RpcSerializationError,
)
from flinkray.core.ids import (
    AllocationID,
    CompositeID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.core.message import message, register, type_name
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, Envelope, Kind, frame_of, unpack
from flinkray.rpc.wire.packing import LARGE


@register
class Colour(Enum):
    """An enum that may travel."""

    RED = "red"
    BLUE = "blue"


@message
class Nested:
    """A message that holds others."""

    job: JobID
    colour: Colour
    inner: tuple[Nested, ...] = ()
    table: dict[str, Any] | None = None


@message
class PartlyNamed:
    """A message of which one field goes by its name only."""

    first: int
    named: int = field(default=0, kw_only=True)
    last: int = 0


class UnregisteredError(Exception):
    """Not one of flinkray's."""


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(Colour)
    | st.binary(min_size=16, max_size=16).map(JobID)
    | st.binary(min_size=16, max_size=16).map(AllocationID)
    | st.text().map(ResourceID)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.builds(
            Nested,
            st.just(JobID(bytes(16))),
            st.sampled_from(Colour),
            st.just(()),
            st.dictionaries(st.text(), inner, max_size=3),
        )
    ),
    max_leaves=12,
)


@given(values)
def test_what_may_travel_arrives_as_it_was(value: object) -> None:
    assert codec.decode(codec.encode(value)) == value


@given(values)
def test_types_arrive_too(value: object) -> None:
    assert type(codec.decode(codec.encode(value))) is type(value)


def test_messages_of_other_packages_arrive_as_they_were() -> None:
    profile = ResourceProfile(1.5, 2**40, {"GPU": 0.5})
    nested = Nested(JobID(b"j" * 16), Colour.BLUE, (Nested(JobID(bytes(16)), Colour.RED),))
    assert codec.decode(codec.encode((profile, nested))) == (profile, nested)


def test_fields_that_go_by_name_only_arrive_in_their_places() -> None:
    value = PartlyNamed(1, 3, named=2)
    assert codec.decode(codec.encode(value)) == value


def test_lists_arrive_as_tuples() -> None:
    assert codec.decode(codec.encode([1, [2]])) == (1, (2,))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ({1: 2}, "keys must be str"),
        ({1, 2}, "set"),
        (2**64, "64 bits"),
        (("deep", {"x": [b"", lambda: None]}), "function"),
        (Nested(JobID(bytes(16)), object()), "object"),  # type: ignore[arg-type]
        (Nested, "type"),
        ("\ud800", "surrogates"),
    ],
)
def test_anything_else_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(RpcSerializationError, match=named):
        codec.encode(value)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_do_more_than_raise(data: bytes) -> None:
    try:
        codec.decode(data)
    except RpcSerializationError:
        return


@pytest.mark.parametrize(
    "wire",
    [
        {0: ["Nothing", 1]},
        {0: [f"{__name__}:Nested", 1]},
        {0: ["JobID", b""]},
        {0: 7},
        {0: []},
        {1: ["builtins:SystemExit"]},
        {5: 1},
        {0: 1, 1: 2},
        {b"x": 1},
        msgpack.ExtType(1, b"JobID\0short"),
        msgpack.ExtType(1, b"no separator"),
        msgpack.ExtType(3, f"{__name__}:Colour\0GREEN".encode()),
        msgpack.ExtType(9, b"JobID\0" + bytes(16)),
        msgpack.ExtType(2, b"JobID\0" + bytes(16)),
        msgpack.ExtType(1, b"ResourceID\0x"),
        msgpack.ExtType(1, f"{__name__}:Colour\0RED".encode()),
        msgpack.ExtType(4, b"JobID\0" + bytes(16)),
        msgpack.ExtType(4, f"{__name__}:Colour\0RED".encode()),
        msgpack.ExtType(3, b"ResourceID\0x"),
    ],
)
def test_wire_forms_that_make_no_sense_are_refused(wire: object) -> None:
    with pytest.raises(RpcSerializationError):
        codec.decode(msgpack.packb(wire))


def test_a_message_with_fewer_or_more_fields_than_its_type_has_here_is_refused() -> None:
    data = codec.encode(Nested(JobID(bytes(16)), Colour.BLUE, (), {"a": 1}))
    name, *values = msgpack.unpackb(data, strict_map_key=False)[0]
    for others in (values[:1], values[:3], [*values, None]):
        with pytest.raises(RpcSerializationError, match=rf"4 fields here, {len(others)} came"):
            codec.decode(msgpack.packb({0: [name, *others]}))


def test_no_exception_that_ends_a_process_can_be_sent_in() -> None:
    error = codec.decode(msgpack.packb({1: ["builtins:SystemExit", [1], "nowhere"]}))
    assert isinstance(error, RemoteError)


def test_errors_arrive_with_their_arguments_and_traceback() -> None:
    original = FencingTokenError("jm", "M.m", JobMasterId(bytes(16)), None)
    try:
        raise original
    except FencingTokenError as raised:
        error = codec.decode(codec.encode_error(raised))
    assert type(error) is FencingTokenError
    assert error.args == original.args
    assert "test_errors_arrive" in (error.remote_traceback or "")
    # passed on by a second process, the first one's story is still told
    again = codec.decode(codec.encode_error(error))
    assert "test_errors_arrive" in (codec.remote_traceback(again) or "")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnregisteredError("x", 1), "UnregisteredError: ('x', 1)"),
        (ValueError(object), "ValueError: <class 'object'>"),
    ],
)
def test_errors_that_cannot_travel_arrive_under_their_name(error: Exception, text: str) -> None:
    arrived = codec.decode(codec.encode_error(error))
    assert type(arrived) is RemoteError
    assert str(arrived) == text


@given(st.binary(max_size=100))
def test_no_bytes_at_all_pass_for_an_envelope(data: bytes) -> None:
    with pytest.raises(RpcSerializationError):
        unpack(data)


REQUEST = (PROTOCOL_VERSION, Kind.ASK, 3, 4, "method", b"token", 1.5, {"id": "x"}, b"args")
ANSWER = (PROTOCOL_VERSION, Kind.RESULT, 3, b"result")


def test_envelopes_arrive_as_they_were() -> None:
    assert unpack(msgpack.packb(REQUEST)) == Envelope(
        Kind.ASK, 3, b"args", 4, "method", b"token", 1.5, {"id": "x"}
    )
    assert unpack(msgpack.packb(ANSWER)) == Envelope(Kind.RESULT, 3, b"result")
    ended = (PROTOCOL_VERSION, Kind.TERMINATED, 7, b"reason")
    assert unpack(msgpack.packb(ended)) == Envelope(Kind.TERMINATED, 0, b"reason", 7)


@pytest.mark.parametrize("parts", [REQUEST, ANSWER])
def test_an_envelope_of_another_version_or_with_a_wrong_field_is_none(
    parts: tuple[object, ...],
) -> None:
    with pytest.raises(RpcSerializationError, match=f"version {PROTOCOL_VERSION}"):
        unpack(msgpack.packb([PROTOCOL_VERSION + 1, *parts[1:]]))
    for index in range(len(parts)):
        for wrong in ([1], -1, float("nan"), "x", b"x", True, {"id": 1}):
            damaged = [*parts]
            damaged[index] = wrong
            is_field = type(wrong) is type(parts[index]) and wrong == wrong
            is_field |= isinstance(parts[index], int) and wrong == -1 and index > 1
            if not is_field:
                with pytest.raises(RpcSerializationError):
                    unpack(msgpack.packb(damaged))
    for short in (parts[:-1], (*parts, None), ()):
        with pytest.raises(RpcSerializationError):
            unpack(msgpack.packb(short))


LARGE_BYTES = bytes(range(256)) * 300
BARELY_SMALL = LARGE_BYTES[:LARGE]


@pytest.mark.parametrize(
    "value",
    [
        LARGE_BYTES,
        (LARGE_BYTES,),
        (1, LARGE_BYTES, ("a", JobID(b"j" * 16)), LARGE_BYTES, b"small", None),
        (*range(20), LARGE_BYTES),
    ],
)
def test_large_bytes_are_sent_as_they_are_and_arrive_as_if_they_were_copied(value: object) -> None:
    encoded = codec.encode_in_parts(value)
    assert isinstance(encoded, list)
    assert b"".join(encoded) == codec.encode(value)
    assert [part for part in encoded if len(part) > LARGE] == [
        part for part in encoded if part is LARGE_BYTES
    ]
    request = (PROTOCOL_VERSION, Kind.ASK, 7, 3, "put", b"token", 1.5, {"a": "b"})
    frame = frame_of((*request, encoded), 1_000_000)
    assert isinstance(frame, list)
    assert any(part is LARGE_BYTES for part in frame)
    arrived = b"".join(frame)
    assert arrived == msgpack.packb((*request, codec.encode(value)))
    # a view of what came, of which no more is copied than what the handler gets
    payload = unpack(memoryview(arrived)).payload
    assert isinstance(payload, memoryview)
    assert payload.obj is arrived
    assert codec.decode(payload) == value


@pytest.mark.parametrize("value", [BARELY_SMALL, (BARELY_SMALL, 1), [LARGE_BYTES], {"a": b""}])
def test_whatever_else_is_encoded_at_once(value: object) -> None:
    assert codec.encode_in_parts(value) == codec.encode(value)


@pytest.mark.parametrize("value", [LARGE_BYTES, BARELY_SMALL, "x" * 5000, "x" * 100_000])
def test_the_frame_limit_holds_to_the_byte(value: object) -> None:
    parts = (PROTOCOL_VERSION, Kind.RESULT, 1, codec.encode_in_parts(value))
    frame = frame_of(parts, 1_000_000)
    size = len(frame if isinstance(frame, bytes) else b"".join(frame))
    frame_of(parts, size)
    for limit in (size - 1, 1000):
        with pytest.raises(FrameTooLargeError, match=r"rpc\.frame-size"):
            frame_of(parts, limit)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame + b"\0",
        lambda frame: frame[:-1],
        lambda frame: b"\x95" + frame[1:],
        lambda frame: frame.replace(b"\xc6", b"\xdb", 1),
        lambda frame: b"\x94\x02\x06\x01" + b"\x93" * 70_000,
        lambda frame: b"\xc1" + frame,
    ],
)
def test_large_frames_that_make_no_sense_are_refused(spoil: Callable[[bytes], bytes]) -> None:
    frame = msgpack.packb((PROTOCOL_VERSION, Kind.RESULT, 1, LARGE_BYTES))
    assert unpack(frame).payload == LARGE_BYTES
    with pytest.raises(RpcSerializationError):
        unpack(spoil(frame))


def test_an_envelope_whose_head_is_large_arrives_too() -> None:
    parts = (PROTOCOL_VERSION, Kind.ASK, 1, 1, "m" * 100_000, None, None, None, LARGE_BYTES)
    assert unpack(msgpack.packb(parts)).payload == LARGE_BYTES


@pytest.mark.parametrize(
    "composite",
    [
        ExecutionAttemptID(
            ExecutionGraphID(b"g" * 16), ExecutionVertexID(JobVertexID(b"v" * 16), 9_999), 2**31
        ),
        ResultPartitionID(
            ExecutionGraphID(b"g" * 16), IntermediateDataSetID(b"d" * 16), 9_999, 2**31
        ),
    ],
)
def test_ids_of_attempts_and_partitions_take_few_bytes(composite: CompositeID) -> None:
    """Ten thousands of them are in a message: two ids, two numbers, and the name of their type."""
    encoded = codec.encode(composite)
    assert codec.decode(encoded) == composite
    assert len(encoded) <= 40 + len(type_name(type(composite))) + 4
    cut = encoded[:1] + bytes([encoded[1] - 1]) + encoded[2:-1]
    with pytest.raises(RpcSerializationError):
        codec.decode(cut)
