"""Whatever comes in: no handler runs for it, nothing breaks, and it is counted.

The frames are those of a peer that has passed the handshake.  Where a frame may still be a whole
request after it was damaged, it began as a call with a token of another session.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from flinkray.core.errors import RpcConnectionError, RpcSerializationError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint, FencedRpcGateway, LocalNetwork, LocalRpcService
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.wire import codec, handshake
from flinkray.rpc.wire.envelope import (
    MAX_FRAME_SIZE,
    PROTOCOL_VERSION,
    Kind,
    unpack,
    unpack_answer,
    unpack_request,
)
from flinkray.rpc.wire.fragments import FRAGMENT_BIT, FRAGMENT_SIZE, LENGTH, FrameSplitter
from flinkray.rpc.wire.frames import FrameStream
from flinkray.testing.virtual_time import run_on_virtual_time
from tests.rpc.peers import Wire, fragment, framed

TOKEN = JobMasterId(b"right token here")
STALE = JobMasterId(b"WRONG TOKEN HERE")
NUMBER = 1
"""Of the only endpoint of a process."""


def call(**fields: object) -> bytes:
    parts: dict[str, object] = {
        "version": PROTOCOL_VERSION,
        "kind": int(Kind.ASK),
        "sequence": 5,
        "target": NUMBER,
        "method": "lead",
        "token": codec.encode(STALE),
        "timeout": 10.0,
        "trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        "payload": codec.encode(()),
    }
    parts.update(fields)
    frame: bytes = msgpack.packb(tuple(parts.values()))
    return frame


ANSWERS = [
    msgpack.packb((PROTOCOL_VERSION, int(kind), 1, codec.encode(value)))
    for kind, value in (
        (Kind.RESULT, ("a result", 1, TOKEN)),
        (Kind.ERROR, ValueError("an error", 2)),
        (Kind.TERMINATED, "a reason"),
    )
]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = st.sampled_from(
    ["version", "kind", "sequence", "target", "method", "timeout", "trace", "payload"]
)


@st.composite
def damaged(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A valid frame of which some bytes are others, missing or twice."""
    frame = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(frame) - 1)) if frame else 0
        match draw(st.sampled_from(["change", "drop", "insert", "cut", "repeat"])):
            case "change" if frame:
                frame[position] = draw(st.integers(0, 255))
            case "drop":
                del frame[position : position + draw(st.integers(1, 5))]
            case "insert":
                frame[position:position] = draw(st.binary(max_size=5))
            case "cut":
                del frame[position:]
            case "repeat":
                frame += frame[position:]
    return bytes(frame)


def kind_of(frame: bytes) -> Kind | None:
    """None: it is no envelope."""
    try:
        return unpack(frame).kind
    except RpcSerializationError:
        return None


class GuardedGateway(FencedRpcGateway):
    """Of one leader session."""

    @abstractmethod
    async def lead(self) -> str: ...


class Guarded(FencedRpcEndpoint[JobMasterId], GuardedGateway):
    """Counts the handlers that ran."""

    calls = 0

    async def lead(self) -> str:
        self.calls += 1
        return str(self.fencing_token)


class Target:
    """A process with one fenced endpoint, and a sender that it trusts."""

    def __init__(self) -> None:
        network = LocalNetwork()
        self.host = LocalRpcService("host", network)
        self.caller = LocalRpcService("caller", network)
        self.leader = Guarded(self.host, "leader", TOKEN)
        self.leader.start()

    async def still_serves(self) -> None:
        """And has run nothing else."""
        assert self.leader.calls == 0
        gateway = await self.caller.connect(self.leader.address, GuardedGateway, TOKEN)
        assert await gateway.lead() == str(TOKEN)
        assert self.leader.calls == 1
        await self.caller.close()
        await self.host.close()


def run(program: Coroutine[Any, Any, None]) -> None:
    run_on_virtual_time(program)


requests = (
    st.binary(max_size=200)
    | damaged([call(), call(kind=int(Kind.TELL)), call(method="nothing"), call(target=77)])
    | st.builds(lambda name, value: call(**{name: value}), fields, anything)
    | st.builds(lambda value: call(version=value), st.integers(0, 255))
    | anything.map(msgpack.packb)
)


@pytest.mark.parametrize("payload", [(1,), (1, 2, 3), {"value": 1}, None, 2])
def test_payload_that_does_not_match_the_parameters_is_refused(payload: object) -> None:
    async def attack() -> None:
        target = Target()
        sent = Wire()
        connection = target.host.new_peer(sent, "attacker#1")
        connection.frame_received(call(token=codec.encode(TOKEN), payload=codec.encode(payload)))
        (answer,) = map(unpack, sent.frames)
        assert answer.kind is Kind.ERROR
        error = codec.decode(answer.payload)
        assert isinstance(error, RpcSerializationError)
        assert "wrong number of arguments" in str(error)
        await target.still_serves()

    run(attack())


@given(st.lists(requests, min_size=1, max_size=10))
@example([call(kind=int(Kind.RESOLVE), target=0, method="leader", payload=codec.encode({}))])
@example([call(token=b"\xc1")])
@example([msgpack.packb([PROTOCOL_VERSION, *[[]] * 8]), b"\x91" * 5000, b"", b"\xc1"])
def test_damaged_requests_run_no_handler_and_break_nothing(
    frames: list[bytes],
) -> None:
    assume(all(kind_of(frame) is not Kind.STOP for frame in frames))  # a peer may stop a process

    async def attack() -> None:
        target = Target()
        sent = Wire()
        connection = target.host.new_peer(sent, "attacker#1")
        refused = 0
        for frame in frames:
            before = len(sent.frames)
            connection.frame_received(frame)
            try:
                unpack_request(frame)
            except RpcSerializationError:
                refused += 1
                assert len(sent.frames) == before
        await asyncio.sleep(1)
        # besides, a request may have come twice or out of order
        assert refused <= target.host.refused_frames <= len(frames)
        for frame in sent.frames:
            unpack_answer(frame)
        await target.still_serves()

    run(attack())


@given(
    st.lists(
        st.binary(max_size=200)
        | damaged(ANSWERS)
        | st.sampled_from(ANSWERS)
        | anything.map(msgpack.packb)
        | st.builds(
            lambda kind, number, payload: msgpack.packb((PROTOCOL_VERSION, kind, number, payload)),
            st.integers(0, 10),
            st.integers(0, 3),
            anything.map(msgpack.packb),
        ),
        max_size=10,
    )
)
@example(
    [
        msgpack.packb(
            (PROTOCOL_VERSION, 7, 1, msgpack.packb({1: ["builtins:StopIteration", [], ""]}))
        )
    ]
)
def test_damaged_answers_do_not_break_the_caller(frames: list[bytes]) -> None:
    async def attack() -> None:
        service = LocalRpcService("caller")
        sent = Wire()
        connection = ClientConnection("liar", "1", sent, service.deadlines)
        connection.followed.add(NUMBER)
        future = connection.ask("what", NUMBER, "m", None, b"", 10.0, MethodRecorder()).future
        refused = 0
        for frame in frames:
            connection.frame_received(frame)
            try:
                unpack_answer(frame)
            except RpcSerializationError:
                refused += 1
        assert connection.refused_frames >= refused
        with suppress(Exception):  # whatever it says, it is an answer or the time-out
            await future
        assert future.done()
        connection.close()
        await service.close()

    run(attack())


def in_fragments(frame: bytes) -> bytes:
    splitter = FrameSplitter()
    splitter.put(frame, 1)
    return b"".join(splitter.take(10 * len(frame)))


LARGE = in_fragments(call(payload=codec.encode((bytes(3 * FRAGMENT_SIZE),))))
streams = (
    st.binary(max_size=300)
    | st.lists(st.binary(max_size=50).map(framed), max_size=5).map(b"".join)
    | damaged([framed(call()) * 3, LARGE, framed(call()) + LARGE])
    | st.builds(
        lambda length, rest: struct.pack(">I", length) + rest,
        st.integers(0, 2**32 - 1),
        st.binary(max_size=100),
    )
    | st.builds(
        fragment,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=100),
    )
)


def refusals(stream: bytes) -> int | None:
    """How many, if there are no fragments; then None."""
    count = position = 0
    while len(stream) - position >= LENGTH.size:
        (length,) = LENGTH.unpack_from(stream, position)
        if length & FRAGMENT_BIT:
            return None
        if length > FRAGMENT_SIZE:
            return count + 1
        begin, position = position + LENGTH.size, position + LENGTH.size + length
        if position > len(stream):
            break
        try:
            unpack_request(stream[begin:position])
        except RpcSerializationError:
            count += 1
    return count


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(streams, st.integers(1, 400))
@example(struct.pack(">I", FRAGMENT_SIZE + 1), 1)
@example(struct.pack(">I", FRAGMENT_BIT | MAX_FRAME_SIZE), 1)
def test_random_bytes_on_a_socket_run_no_handler_and_delay_no_other_connection(
    stream: bytes, portion: int
) -> None:
    assume(not _stops(stream))

    async def attack() -> None:
        target = Target()
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        _, attacked = await loop.create_connection(FrameStream, sock=theirs)
        attacked.attach(target.host.new_peer(attacked, "attacker#1"))
        with suppress(ConnectionError):
            for begin in range(0, len(stream), max(portion, len(stream) // 20)):
                await loop.sock_sendall(
                    mine, stream[begin : begin + max(portion, len(stream) // 20)]
                )
                await asyncio.sleep(0)
            mine.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while await loop.sock_recv(mine, 65_536):
                pass
        mine.close()
        expected = refusals(stream)
        if expected is not None:
            assert expected <= target.host.refused_frames <= expected + stream.count(b"lead")
        await target.still_serves()

    asyncio.run(attack())


def _stops(stream: bytes) -> bool:
    """Whether a request to stop the process might be among it."""
    return bytes([0x99, PROTOCOL_VERSION, Kind.STOP]) in stream


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100) | anything.map(msgpack.packb), max_size=3))
@example([msgpack.packb(("flinkray", PROTOCOL_VERSION, bytes(32), "me#1", "host", "1"))])
def test_random_frames_do_not_pass_the_handshake(frames: list[bytes]) -> None:
    async def attack() -> None:
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        _, attacked = await loop.create_connection(FrameStream, sock=theirs)
        await loop.sock_sendall(mine, b"".join(map(framed, frames)))
        mine.shutdown(socket.SHUT_WR)
        with pytest.raises(RpcConnectionError):
            await handshake.receive(attacked, b"the secret", "host", "1")
        attacked.close()
        mine.close()
        await asyncio.sleep(0)

    asyncio.run(attack())
