"""What may travel and what may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flinkray.core.errors import (
    FencingTokenError,
    FlinkRayError,
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
from flinkray.rpc.wire import codec, envelope
from flinkray.rpc.wire.codec import LARGE
from flinkray.rpc.wire.envelope import (
    PROTOCOL_VERSION,
    Envelope,
    Kind,
    frame_of,
    unpack,
    unpack_answer,
    unpack_request,
)


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
@example((ResourceProfile(1.5, 2**40, {"GPU": 0.5}), PartlyNamed(1, 3, named=2)))
def test_value_of_a_type_that_may_be_sent_is_decoded_with_its_type(value: object) -> None:
    decoded = codec.decode(codec.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


def test_lists_are_decoded_as_tuples() -> None:
    assert codec.decode(codec.encode([1, [2]])) == (1, (2,))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ({1: 2}, "keys must be str"),
        ({1, 2}, "set"),
        (("deep", {"x": [b"", lambda: None]}), "function"),
        (Nested(JobID(bytes(16)), object()), "object"),  # type: ignore[arg-type]
        (Nested, "type"),
        ("\ud800", "surrogates"),
    ],
)
def test_value_of_a_type_that_cannot_be_sent_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(RpcSerializationError, match=named):
        codec.encode(value)


@given(st.binary(max_size=200))
def test_decoding_any_bytes_gives_a_value_or_a_serialization_error(data: bytes) -> None:
    try:
        codec.decode(data)
    except RpcSerializationError:
        return


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ({0: ["Nothing", 1]}, "no type Nothing is registered in this process"),
        ({0: [f"{__name__}:Nested", 1]}, ""),
        ({0: ["JobID", b""]}, ""),
        ({0: 7}, ""),
        ({0: []}, ""),
        ({0: [f"{__name__}:Colour", 1]}, "Colour is not a message"),
        ({0: ["JobID", bytes(16)]}, ""),
        ({False: [f"{__name__}:PartlyNamed", 1, 2, 3]}, ""),
        ({0.0: [f"{__name__}:PartlyNamed", 1, 2, 3]}, ""),
        ({True: ["builtins:ValueError", ["x"], "nowhere"]}, ""),
        ({1.0: ["builtins:ValueError", ["x"], "nowhere"]}, ""),
        ({2: ["builtins:ValueError", ["x"], "nowhere"]}, ""),
        ({"x": 1, 0: 2}, ""),
        ({0: 2, "x": 1}, ""),
        ({1: ["builtins:SystemExit"]}, ""),
        ({5: 1}, "a map with the key 5"),
        ({0: 1, 1: 2}, "a map with keys that are not str"),
        ({b"x": 1}, ""),
        (msgpack.ExtType(1, b"JobID\0short"), ""),
        (msgpack.ExtType(1, b"no separator"), "ext value without type, code 1"),
        (msgpack.ExtType(1, b"Nothing\0x"), "no type Nothing is registered in this process"),
        (msgpack.ExtType(3, f"{__name__}:Colour\0GREEN".encode()), ""),
        (msgpack.ExtType(9, b"JobID\0" + bytes(16)), "ext code 9 for JobID"),
        (msgpack.ExtType(2, b"JobID\0" + bytes(16)), ""),
        (msgpack.ExtType(1, b"ResourceID\0x"), ""),
        (msgpack.ExtType(1, f"{__name__}:Colour\0RED".encode()), ""),
        (msgpack.ExtType(4, b"JobID\0" + bytes(16)), ""),
        (msgpack.ExtType(4, f"{__name__}:Colour\0RED".encode()), ""),
        (msgpack.ExtType(3, b"ResourceID\0x"), ""),
    ],
)
def test_bytes_that_encode_no_message_are_refused_with_the_reason(
    wire: object, reason: str
) -> None:
    with pytest.raises(RpcSerializationError) as refused:
        codec.decode(msgpack.packb(wire))
    assert str(refused.value).startswith("cannot decode a message: ")
    assert reason in str(refused.value)


class Unregistered(Enum):
    """An enum that may not travel."""

    RED = "red"


class UnregisteredText(str):
    """A text that may not travel."""

    __slots__ = ()


@dataclass
class UnregisteredMessage:
    """A message that may not travel."""


@register
class Odd:
    """Registered, and nothing that has a wire form."""


@pytest.mark.parametrize(
    "value",
    [
        Unregistered.RED,
        UnregisteredText("x"),
        UnregisteredMessage(),
        object(),
    ],
)
def test_unregistered_type_is_refused_with_a_hint_at_its_declaration(value: object) -> None:
    reason = rf"cannot send a {type(value).__name__} \(.* is not a registered message type; declare"
    for sent in (value, (1, value), {"x": value}, [value, 1]):
        with pytest.raises(RpcSerializationError, match=reason):
            codec.encode(sent)


def test_registered_type_without_a_wire_form_is_refused() -> None:
    for sent in (Odd(), (1, Odd())):
        with pytest.raises(RpcSerializationError, match="cannot send a Odd \\(registered, but"):
            codec.encode(sent)


def test_class_that_only_has_the_name_of_a_registered_class_is_refused() -> None:
    impostor: Any = dataclass(
        type("Nested", (), {"__module__": __name__, "__qualname__": "Nested"})
    )
    with pytest.raises(RpcSerializationError, match="is not a registered message type"):
        codec.encode(impostor())


@register
class Access(Flag):
    """Flags that may travel one by one."""

    READ = 1
    WRITE = 2


def test_value_of_a_registered_type_that_cannot_be_sent_is_refused() -> None:
    """Any other exception would leave the caller of a handler with such a result waiting."""
    assert codec.decode(codec.encode((Access.READ, Access.WRITE))) == (Access.READ, Access.WRITE)
    with pytest.raises(RpcSerializationError, match=r"cannot send <Access\..*no combinations"):
        codec.encode({"access": Access.READ | Access.WRITE})
    vertex = ExecutionVertexID(JobVertexID(bytes(16)), 0)
    attempt = ExecutionAttemptID(ExecutionGraphID(bytes(16)), vertex, -1)
    for value in (attempt, (attempt,), Access(0)):
        with pytest.raises(RpcSerializationError, match="cannot send"):
            codec.encode(value)


def test_integers_above_64_bits_are_refused_at_any_depth() -> None:
    for value in (2**64, -(2**63) - 1, (2**64,), {"a": [2**64]}):
        reason = f"cannot send a {type(value).__name__}: an int has more than 64 bits"
        with pytest.raises(RpcSerializationError, match=reason):
            codec.encode(value)
    endless: list[object] = []
    endless.append((endless, JobID(bytes(16))))
    with pytest.raises(RpcSerializationError, match="cannot send a list: "):
        codec.encode(endless)


@message
class Counted:
    """A message with a field that is not sent."""

    number: int
    doubled: int = field(default=0, init=False)
    last: str = "x"

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.number)


def test_field_that_a_message_type_computes_itself_is_not_sent() -> None:
    assert codec.decode(codec.encode(Counted(3, "y"))) == Counted(3, "y")
    assert msgpack.unpackb(codec.encode(Counted(3)), strict_map_key=False) == {
        0: [f"{__name__}:Counted", 3, "x"]
    }


def test_message_with_another_number_of_fields_than_its_type_is_refused() -> None:
    data = codec.encode(Nested(JobID(bytes(16)), Colour.BLUE, (), {"a": 1}))
    name, *values = msgpack.unpackb(data, strict_map_key=False)[0]
    for others in (values[:1], values[:3], [*values, None]):
        with pytest.raises(RpcSerializationError, match=rf"4 fields here, {len(others)} came"):
            codec.decode(msgpack.packb({0: [name, *others]}))


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
def test_error_that_cannot_be_sent_arrives_as_remote_error_with_its_type_name(
    error: Exception, text: str
) -> None:
    arrived = codec.decode(codec.encode_error(error))
    assert type(arrived) is RemoteError
    assert str(arrived) == text


class PickyError(FlinkRayError):
    """Its constructor does not take what it passes on."""

    def __init__(self, number: int, *, text: str = "") -> None:
        super().__init__(f"{number}", text)


@pytest.mark.parametrize(
    ("wire", "kind", "text"),
    [
        (["builtins:KeyError", ["a"], "t"], KeyError, "'a'"),
        (["builtins:UnicodeDecodeError", ["a", 1], "t"], RemoteError, "UnicodeDecodeError: a, 1"),
        ([f"{__name__}:PickyError", ["a", 1], "t"], RemoteError, "PickyError: a, 1"),
        (["builtins:NoSuchError", ["a"], "t"], RemoteError, "NoSuchError: a"),
        (["builtins:len", ["a"], "t"], RemoteError, "len: a"),
        (["builtins:int", ["a"], "t"], RemoteError, "int: a"),
        (["builtins:KeyboardInterrupt", [], "t"], RemoteError, "KeyboardInterrupt: "),
        (["builtins:SystemExit", [1], "t"], RemoteError, "SystemExit: 1"),
        (["builtins:StopIteration", [1], "t"], RemoteError, "StopIteration: 1"),
        (["FlinkRayError", ["a"], "t"], FlinkRayError, "a"),
        (["RpcSerializationError", ["a"], "t"], RpcSerializationError, "a"),
        (["NoSuchError", ["a"], "t"], RemoteError, "NoSuchError: a"),
        (["somewhere:NoSuchError", ["a"], "t"], RemoteError, "NoSuchError: a"),
        (["somewhere:KeyError", ["a"], "t"], RemoteError, "KeyError: a"),
        (["JobID", [bytes(16)], "t"], RemoteError, f"JobID: {bytes(16)!r}"),
    ],
)
def test_received_error_is_decoded_as_its_type_or_as_a_remote_error(
    wire: list[object], kind: type[Exception], text: str
) -> None:
    error = codec.decode(msgpack.packb({1: wire}))
    assert type(error) is kind
    assert str(error) == text
    assert str(error.__cause__) == "\n\nt"
    assert getattr(error, "remote_traceback", "t") == "t"


@pytest.mark.parametrize(
    ("said", "arrives"), [("plain", "plain"), ("käse", "käse"), ("half \ud800", "half \\ud800")]
)
def test_text_of_an_error_arrives_although_it_has_lone_surrogates(said: str, arrives: str) -> None:
    error = codec.decode(codec.encode(ValueError(said, JobID(bytes(16)))))
    assert error.args == (arrives, JobID(bytes(16)))


def test_reraised_remote_error_tells_its_origin_and_the_reraise_place() -> None:
    arrived = codec.decode(msgpack.packb({1: ["builtins:ValueError", ["x"], "far away"]}))
    assert codec.remote_traceback(arrived) == "far away"
    untouched = codec.decode(codec.encode(arrived))
    assert codec.remote_traceback(untouched) == "far away"
    try:
        raise arrived
    except ValueError as error:
        again = codec.decode(codec.encode(error))
    told = codec.remote_traceback(again) or ""
    assert "far away" in told
    assert "test_reraised_remote_error" in told
    assert codec.remote_traceback(ValueError("from here")) is None


def test_shortened_error_keeps_its_type_and_a_part_of_text_and_traceback() -> None:
    def in_short(error: BaseException) -> RemoteError:
        short = codec.decode(codec.encode_error_in_short(error))
        assert isinstance(short, RemoteError)
        return short

    arrived = codec.decode(msgpack.packb({1: ["somewhere:OddError", ["x"], "far away"]}))
    short = in_short(arrived)
    assert (short.error_type, short.text, short.remote_traceback) == ("OddError", "x", "far away")
    try:
        raise ValueError("y" * 50_000)
    except ValueError as error:
        short = in_short(error)
    assert short.error_type == "ValueError"
    assert len(short.text) < 20_000
    assert "ValueError" in (short.remote_traceback or "")


class UnspeakableError(Exception):
    """Cannot even be looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name == "args":
            raise RuntimeError("do not look")
        return super().__getattribute__(name)


def test_error_whose_text_cannot_be_read_arrives_with_its_type_name() -> None:
    error = codec.decode(codec.encode_error(UnspeakableError("x")))
    assert isinstance(error, RemoteError)
    assert error.error_type == "UnspeakableError"


@given(st.binary(max_size=100))
def test_random_bytes_are_refused_as_an_envelope(data: bytes) -> None:
    with pytest.raises(RpcSerializationError):
        unpack(data)


REQUEST = (PROTOCOL_VERSION, Kind.ASK, 3, 4, "method", b"token", 1.5, {"id": "x"}, b"args")
ANSWER = (PROTOCOL_VERSION, Kind.RESULT, 3, b"result")


def test_envelopes_are_unpacked_unchanged() -> None:
    assert unpack(msgpack.packb(REQUEST)) == Envelope(
        Kind.ASK, 3, b"args", 4, "method", b"token", 1.5, {"id": "x"}
    )
    assert unpack(msgpack.packb(ANSWER)) == Envelope(Kind.RESULT, 3, b"result")
    ended = (PROTOCOL_VERSION, Kind.TERMINATED, 7, b"reason")
    assert unpack(msgpack.packb(ended)) == Envelope(Kind.TERMINATED, 0, b"reason", 7)


@pytest.mark.parametrize("parts", [REQUEST, ANSWER])
def test_envelope_with_another_version_or_a_wrong_field_is_refused(
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


NO_VERSION = f"not an envelope of protocol version {PROTOCOL_VERSION}"
NO_FIELD = "not an envelope: a field is missing or of the wrong type"


@pytest.mark.parametrize("kind", [*Kind, 0, 9])
def test_an_envelope_is_a_request_or_an_answer_by_its_kind(kind: int) -> None:
    request = msgpack.packb((PROTOCOL_VERSION, int(kind), *REQUEST[2:]))
    answer = msgpack.packb((PROTOCOL_VERSION, int(kind), *ANSWER[2:]))
    if Kind.RESOLVE <= kind <= Kind.PING:
        assert unpack_request(request)[1] == kind
    else:
        with pytest.raises(RpcSerializationError, match=NO_FIELD):
            unpack_request(request)
    if Kind.RESULT <= kind <= Kind.TERMINATED:
        assert unpack_answer(answer) == (PROTOCOL_VERSION, kind, 3, b"result")
    else:
        with pytest.raises(RpcSerializationError, match=NO_FIELD):
            unpack_answer(answer)
    for unpacks, frame in ((unpack_request, answer), (unpack_answer, request)):
        with pytest.raises(RpcSerializationError, match=NO_FIELD):
            unpacks(frame)


@pytest.mark.parametrize(
    ("field", "value", "is_right"),
    [
        (5, None, True),
        (5, b"", True),
        (5, "token", False),
        (6, None, True),
        (6, 0, True),
        (6, 0.0, True),
        (6, 0.5, True),
        (6, 7, True),
        (6, -1, False),
        (6, -0.001, False),
        (6, float("nan"), False),
        (6, True, False),
        (6, "1", False),
        (7, None, True),
        (7, {}, True),
        (7, {"a": "b", "c": "d"}, True),
        (7, {"a": "b", "c": 1}, False),
        (7, {"a": 1}, False),
        (7, {b"a": "b"}, False),
        (7, ("a",), False),
        (7, "a", False),
    ],
)
def test_request_with_an_optional_field_of_a_wrong_type_is_refused(
    field: int, value: object, is_right: bool
) -> None:
    frame = msgpack.packb((*REQUEST[:field], value, *REQUEST[field + 1 :]))
    if is_right:
        assert unpack_request(frame)[field] == value
    else:
        with pytest.raises(RpcSerializationError):
            unpack_request(frame)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (msgpack.packb(()), NO_VERSION),
        (msgpack.packb(7), NO_VERSION),
        (msgpack.packb({}), NO_VERSION),
        (msgpack.packb((PROTOCOL_VERSION + 1, *REQUEST[1:])), NO_VERSION),
        (msgpack.packb((PROTOCOL_VERSION,)), NO_FIELD),
        (msgpack.packb((*REQUEST, 1)), NO_FIELD),
        (msgpack.packb((*REQUEST[:1], "x", *REQUEST[2:])), NO_FIELD),
        (msgpack.packb((*REQUEST[:2], 1.5, *REQUEST[3:])), NO_FIELD),
        (b"\xc1", "not an envelope: "),
        (b"", "not an envelope: "),
        (b"\x91" * 5000, "not an envelope: "),
    ],
)
def test_refused_envelope_is_reported_with_wrong_version_or_wrong_field(
    frame: bytes, reason: str
) -> None:
    for unpacks in (unpack_request, unpack_answer):
        with pytest.raises(RpcSerializationError) as refused:
            unpacks(frame)
        assert str(refused.value).startswith(reason)


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
def test_large_bytes_are_sent_without_a_copy_and_arrive_unchanged(value: object) -> None:
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


@pytest.mark.parametrize(
    "value",
    [
        BARELY_SMALL,
        (BARELY_SMALL, 1),
        [LARGE_BYTES],
        {"a": b""},
        "x" * 100_000,
        ("x" * 100_000,),
        (),
    ],
)
def test_value_without_large_bytes_is_encoded_as_one_buffer(value: object) -> None:
    assert codec.encode_in_parts(value) == codec.encode(value)


@pytest.mark.parametrize("value", [LARGE_BYTES, BARELY_SMALL, "x" * 5000, "x" * 100_000])
def test_frame_limit_is_exact_to_the_byte(value: object) -> None:
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
def test_damaged_large_frames_are_refused(spoil: Callable[[bytes], bytes]) -> None:
    frame = msgpack.packb((PROTOCOL_VERSION, Kind.RESULT, 1, LARGE_BYTES))
    assert unpack(frame).payload == LARGE_BYTES
    with pytest.raises(RpcSerializationError):
        unpack(spoil(frame))


def test_envelope_whose_fields_before_the_payload_are_large_is_unpacked() -> None:
    parts = (PROTOCOL_VERSION, Kind.ASK, 1, 1, "m" * 100_000, None, None, None, LARGE_BYTES)
    assert unpack(msgpack.packb(parts)).payload == LARGE_BYTES


def test_bytes_too_long_for_one_value_are_not_sent_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real limit is 4 GiB; the test lowers the limit."""
    longest = LARGE + 100
    monkeypatch.setattr(codec, "LONGEST", longest)
    monkeypatch.setattr(envelope, "LONGEST", longest)
    for size, in_parts in ((longest, True), (longest + 1, False)):
        data = bytes(size)
        assert isinstance(codec.encode_in_parts(data), list) == in_parts
        assert isinstance(codec.encode_in_parts((data,)), list) == in_parts
    answer = (PROTOCOL_VERSION, Kind.RESULT, 1)
    assert isinstance(frame_of((*answer, bytes(longest)), 1_000_000), list)
    with pytest.raises(FrameTooLargeError):
        frame_of((*answer, bytes(longest + 1)), 1_000_000)


def test_tuple_with_bytes_that_are_large_or_too_long_is_decoded_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "LONGEST", LARGE + 1)
    value = (bytes(LARGE + 2), b"a" * (LARGE + 1), "b" * (LARGE + 1), b"c" * LARGE)
    encoded = codec.encode_in_parts(value)
    assert isinstance(encoded, list)
    assert len(encoded) == 3
    assert encoded[1] is value[1]
    assert codec.decode(b"".join(encoded)) == value


def test_large_encoded_payload_is_not_copied_into_its_frame() -> None:
    payload = codec.encode(["x" * LARGE])
    frame = frame_of((PROTOCOL_VERSION, Kind.RESULT, 1, payload), 1_000_000)
    assert isinstance(frame, list)
    assert frame[1] is payload
    barely = frame_of((PROTOCOL_VERSION, Kind.RESULT, 1, bytes(LARGE)), 1_000_000)
    assert isinstance(barely, bytes)


@pytest.mark.parametrize("parts", [REQUEST, ANSWER])
def test_payload_of_a_large_frame_is_a_view_and_that_of_a_small_one_a_copy(
    parts: tuple[object, ...],
) -> None:
    unpacks: Any = unpack_request if parts is REQUEST else unpack_answer
    head = len(msgpack.packb((*parts[:-1], bytes(300)))) - 300
    for size, kind in ((LARGE - head, bytes), (LARGE - head + 1, bytes), (LARGE, memoryview)):
        frame = msgpack.packb((*parts[:-1], bytes(size)))
        assert unpacks(frame)[-1] == bytes(size)
        assert type(unpacks(frame)[-1]) is kind
        assert (len(frame) > LARGE) == (size > LARGE - head)


def test_packer_is_not_reused_after_it_has_packed_large_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packer would keep as much memory."""
    idle: list[msgpack.Packer] = []
    monkeypatch.setattr(codec, "_idle", idle)
    assert codec.pack((1, "a")) == msgpack.packb((1, "a"))
    (packer,) = idle
    assert len(codec.pack(bytes(LARGE - 3))) == LARGE
    assert idle == [packer]
    assert len(codec.pack(bytes(LARGE - 2))) == LARGE + 1
    assert idle == []


@pytest.mark.parametrize(
    ("data", "count", "parts"),
    [
        (msgpack.packb((1, (2,), bytes(70_000))), 3, (1, (2,), bytes(70_000))),
        (msgpack.packb((1, bytes(70_000))), 3, None),
        (msgpack.packb((1, 2, 3, bytes(70_000))), 3, None),
        (msgpack.packb((1, 2, "x" * 70_000)), 3, None),
        (msgpack.packb((1, 2, bytes(70_000))) + b"\0", 3, None),
        (msgpack.packb((1, 2, bytes(70_000)))[:-1], 3, None),
        (msgpack.packb((1, "x" * 9000, bytes(70_000))), 3, None),
        (msgpack.packb({1: 2}), 3, None),
        (msgpack.packb((1, 2, b"")), 3, None),
        (b"\x93\1\2" + codec.bytes_head(0), 3, (1, 2, b"")),
        (b"\x93\1\2" + codec.bytes_head(0)[:-1], 3, None),
        (b"\x93\1\2", 3, None),
        (b"", 3, None),
        (b"\xc1" * 100, 3, None),
    ],
)
def test_partial_unpacking_returns_all_values_before_the_last_or_none(
    data: bytes, count: int, parts: tuple[object, ...] | None
) -> None:
    unpacked = codec.unpack_but_last(data, count)
    assert unpacked == parts
    assert codec.unpack_but_last(memoryview(data), count) == parts
    if unpacked is not None:
        assert isinstance(unpacked[-1], memoryview)


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
def test_ids_of_attempts_and_partitions_are_encoded_in_few_bytes(composite: CompositeID) -> None:
    """Messages contain tens of thousands of these ids."""
    encoded = codec.encode(composite)
    assert codec.decode(encoded) == composite
    assert len(encoded) <= 40 + len(type_name(type(composite))) + 4
    cut = encoded[:1] + bytes([encoded[1] - 1]) + encoded[2:-1]
    with pytest.raises(RpcSerializationError):
        codec.decode(cut)
