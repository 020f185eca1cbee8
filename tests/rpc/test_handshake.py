"""What happens on a socket before and between envelopes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION
from flinkray.rpc.wire.frames import MAX_HANDSHAKE_FRAME, FrameStream

SECRET = b"s" * 32


@dataclass
class Recorder:
    """A receiver that keeps what it gets."""

    frames: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    lost: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    refused: list[str] = field(default_factory=list)

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.frames.put_nowait(bytes(frame))

    def frame_refused(self, reason: str) -> None:
        self.refused.append(reason)

    def connection_lost(self, reason: str) -> None:
        self.lost.put_nowait(reason)


@dataclass
class Server:
    """One process that listens."""

    port: int
    outcomes: asyncio.Queue[str | HandshakeError | RpcConnectionError]
    recorder: Recorder
    streams: list[FrameStream]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    here = Server(0, asyncio.Queue(), Recorder(), [])

    async def welcome(stream: FrameStream) -> None:
        try:
            identity = await handshake.receive(stream, SECRET, "server", "1")
        except (HandshakeError, RpcConnectionError) as error:
            here.outcomes.put_nowait(error)
            stream.close()
            return
        stream.attach(here.recorder)
        here.outcomes.put_nowait(identity)

    def accept() -> FrameStream:
        stream = FrameStream(max_frame_size=100_000)
        here.streams.append(stream)
        tasks.append(loop.create_task(welcome(stream)))
        return stream

    listener = await loop.create_server(accept, "127.0.0.1", 0)
    here.port = listener.sockets[0].getsockname()[1]
    yield here
    listener.close()
    for stream in here.streams:
        stream.close()
    await asyncio.gather(*tasks)
    await listener.wait_closed()


async def connect(server: Server) -> FrameStream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: FrameStream(max_frame_size=100_000), "127.0.0.1", server.port
    )
    return stream


async def introduced(server: Server) -> tuple[FrameStream, Recorder]:
    stream, recorder = await connect(server), Recorder()
    await handshake.introduce(stream, SECRET, "client#1", "server", "1")
    stream.attach(recorder)
    assert await server.outcomes.get() == "client#1"
    return stream, recorder


async def test_frames_of_all_sizes_arrive_whole_and_in_order(server: Server) -> None:
    stream, recorder = await introduced(server)
    frames = [bytes([n % 256]) * (n * n * 4) for n in range(150)]
    for frame in frames:
        stream.send(frame)
    assert [await server.recorder.frames.get() for _ in frames] == frames
    server.streams[0].send(b"back")
    assert await recorder.frames.get() == b"back"
    stream.close()
    assert "closed by the other side" in await server.recorder.lost.get()
    assert await recorder.lost.get()


async def test_frames_sent_before_a_stream_is_closed_still_arrive(server: Server) -> None:
    stream, _ = await introduced(server)
    stream.send(b"last words")
    stream.close()
    assert await server.recorder.frames.get() == b"last words"


async def test_client_notices_a_wrong_secret_before_the_server(server: Server) -> None:
    stream = await connect(server)
    with pytest.raises(HandshakeError, match="server does not know the cluster's secret"):
        await handshake.introduce(stream, b"x" * 32, "client#1", "server", "1")
    stream.close()
    assert isinstance(await server.outcomes.get(), RpcConnectionError)


async def test_client_that_cannot_prove_the_secret_is_refused(server: Server) -> None:
    stream = await connect(server)
    stream.send(msgpack.packb(("flinkray", PROTOCOL_VERSION, bytes(32), "client#1", "server", "1")))
    assert msgpack.unpackb(await stream.receive())[0] == "challenge"
    stream.send(msgpack.packb(("proof", bytes(32))))
    assert msgpack.unpackb(await stream.receive())[:2] == ["refused", "secret"]
    assert isinstance(await server.outcomes.get(), HandshakeError)
    with pytest.raises(RpcConnectionError, match="closed by the other side"):
        await stream.receive()
    stream.close()


class Tapped:
    """A connection of which an eavesdropper has everything."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        self.stream.send(frame)

    async def receive(self) -> bytes:
        return await self.stream.receive()


@pytest.mark.parametrize("nonce", [b"", b"n" * 15, b"n" * 1000, "n" * 32, None])
async def test_hello_without_a_valid_nonce_is_refused(server: Server, nonce: object) -> None:
    stream = await connect(server)
    hello = (handshake._MAGIC, PROTOCOL_VERSION, nonce, "client#1", "server", "1")
    stream.send(msgpack.packb(hello))
    refusal = msgpack.unpackb(await stream.receive())
    assert refusal == ["refused", "protocol", "a hello without nonce"]
    assert isinstance(await server.outcomes.get(), HandshakeError)
    stream.close()


async def test_recorded_proof_is_refused_on_another_connection(server: Server) -> None:
    """Each challenge has its own nonce."""
    tapped = Tapped(await connect(server))
    await handshake.introduce(tapped, SECRET, "client#1", "server", "1")
    assert await server.outcomes.get() == "client#1"
    hello, proof = tapped.sent
    stream = await connect(server)
    stream.send(hello)
    assert msgpack.unpackb(await stream.receive())[0] == "challenge"
    stream.send(proof)
    assert msgpack.unpackb(await stream.receive())[:2] == ["refused", "secret"]
    assert isinstance(await server.outcomes.get(), HandshakeError)
    tapped.stream.close()
    stream.close()


async def test_client_refuses_a_server_that_replays_a_recorded_challenge(server: Server) -> None:
    """An impostor at the address of a process cannot use an earlier answer of that process."""
    recorded: list[bytes] = []

    class Impostor:
        def send(self, frame: bytes) -> None:
            return

        async def receive(self) -> bytes:
            return recorded[0]

    stream = await connect(server)
    stream.send(msgpack.packb(("flinkray", PROTOCOL_VERSION, bytes(32), "client#1", "server", "1")))
    recorded.append(await stream.receive())
    with pytest.raises(HandshakeError, match="server does not know the cluster's secret"):
        await handshake.introduce(Impostor(), SECRET, "client#1", "server", "1")
    stream.close()


async def test_other_protocol_version_is_refused_with_its_number(
    server: Server,
) -> None:
    """RPC-33"""
    stream = await connect(server)
    stream.send(msgpack.packb(("flinkray", 99, bytes(32), "client#1", "server", "1")))
    refused = msgpack.unpackb(await stream.receive())
    assert refused[:2] == ["refused", "protocol"]
    assert "99" in refused[2]
    stream.close()


@pytest.mark.parametrize(("process", "incarnation"), [("other", "1"), ("server", "2")])
async def test_client_that_expects_another_process_or_incarnation_is_told_the_real_one(
    server: Server, process: str, incarnation: str
) -> None:
    stream = await connect(server)
    with pytest.raises(RpcConnectionError, match="this is server, incarnation 1") as caught:
        await handshake.introduce(stream, SECRET, "client#1", process, incarnation)
    assert not isinstance(caught.value, HandshakeError)
    stream.close()


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2**31), struct.pack(">I", 3) + b"\xc1\xc1\xc1"],
)
async def test_connection_that_speaks_another_protocol_is_closed(
    server: Server, data: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    outcome = await server.outcomes.get()
    assert isinstance(outcome, RpcConnectionError)
    writer.close()
    # a refusal at most, then the end
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1000)
    assert server.recorder.frames.empty()


async def test_a_frame_above_the_limit_ends_the_connection(server: Server) -> None:
    stream, recorder = await introduced(server)
    stream.send(bytes(100_001))
    reason = await server.recorder.lost.get()
    assert "limit is 100000" in reason
    assert server.recorder.refused == [reason]
    await recorder.lost.get()
    assert server.recorder.frames.empty()


async def test_sender_waits_until_its_peer_has_read_enough(server: Server) -> None:
    stream, _ = await introduced(server)
    sent = 0
    while not stream.is_congested:
        stream.send(bytes(50_000))
        sent += 1
        if sent % 10 == 0:
            await asyncio.sleep(0)
    await stream.drain()
    assert not stream.is_congested
    for _ in range(sent):
        assert len(await server.recorder.frames.get()) == 50_000
    stream.close()


async def test_unread_bytes_of_a_client_before_its_handshake_are_bounded() -> None:
    loop = asyncio.get_running_loop()
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    transport, stream = await loop.create_connection(FrameStream, sock=theirs)
    with contextlib.suppress(BlockingIOError):
        while True:
            mine.send(bytes(65_536))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not transport.is_reading()
    assert len(stream._unread) <= 2 * MAX_HANDSHAKE_FRAME
    transport.abort()
    mine.close()
    await asyncio.sleep(0)


async def test_proof_of_the_server_sent_back_by_a_client_is_refused(server: Server) -> None:
    stream = await connect(server)
    stream.send(msgpack.packb(("flinkray", PROTOCOL_VERSION, bytes(32), "client#1", "server", "1")))
    _, _, reflected = msgpack.unpackb(await stream.receive())
    stream.send(msgpack.packb(("proof", reflected)))
    assert msgpack.unpackb(await stream.receive())[:2] == ["refused", "secret"]
    assert isinstance(await server.outcomes.get(), HandshakeError)
    stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name the options otherwise")
async def test_both_ends_set_keepalive_options_that_detect_a_lost_machine(server: Server) -> None:
    """No test can cut the power of a machine, so the socket options are checked."""
    stream, _ = await introduced(server)
    for end in (stream, server.streams[0]):
        assert end._transport is not None
        own_end = end._transport.get_extra_info("socket")
        assert own_end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        asked_for = [
            own_end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert asked_for == [60, 10, 6]
        # it would end connections whose other side lives and does not read
        assert own_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert own_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    stream.close()


class Scripted:
    """The other end of a handshake, which says what it is told to; *answers* takes what came."""

    def __init__(self, *answers: Callable[[Any], object]) -> None:
        self.sent: list[Any] = []
        self._answers = list(answers)

    def send(self, frame: bytes) -> None:
        self.sent.append(msgpack.unpackb(frame, use_list=False))

    async def receive(self) -> bytes:
        if not self._answers:
            raise RpcConnectionError("it is gone")
        said = self._answers.pop(0)(self)
        return said if isinstance(said, bytes) else bytes(msgpack.packb(said))


HELLO = ("flinkray", PROTOCOL_VERSION, bytes(32), "client#1", "server", "1")
NOT_A_HELLO = ("refused", "protocol", "not a hello of flinkray")


def spoken(version: object) -> tuple[str, str, str]:
    ours = f"{PROTOCOL_VERSION} is spoken here"
    return ("refused", "protocol", f"protocol version {version!r}, {ours}")


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        (b"", NOT_A_HELLO),
        (b"\xc1", NOT_A_HELLO),
        (b"\x91" * 2000, NOT_A_HELLO),
        (7, NOT_A_HELLO),
        ("flinkr", NOT_A_HELLO),
        ({}, NOT_A_HELLO),
        (HELLO[:-1], NOT_A_HELLO),
        ((*HELLO, 1), NOT_A_HELLO),
        (("another", *HELLO[1:]), NOT_A_HELLO),
        (("flinkray", 99, *HELLO[2:]), spoken(99)),
        (("flinkray", "x", None, *HELLO[3:]), spoken("x")),
        ((*HELLO[:2], bytes(31), *HELLO[3:]), ("refused", "protocol", "a hello without nonce")),
        ((*HELLO[:2], bytes(33), *HELLO[3:]), ("refused", "protocol", "a hello without nonce")),
        ((*HELLO[:2], "x" * 32, *HELLO[3:]), ("refused", "protocol", "a hello without nonce")),
        ((*HELLO[:2], None, *HELLO[3:]), ("refused", "protocol", "a hello without nonce")),
        ((*HELLO[:5], "2"), ("refused", "process", "this is server, incarnation 1")),
        (
            (*HELLO[:4], "other", "1"),
            ("refused", "process", "this is server, incarnation 1"),
        ),
        ((*HELLO[:4], None, 1), ("refused", "process", "this is server, incarnation 1")),
    ],
)
async def test_malformed_hello_is_refused_with_the_reason(
    hello: object, refusal: tuple[str, str, str]
) -> None:
    client = Scripted(lambda _: hello)
    with pytest.raises(HandshakeError) as refused:
        await handshake.receive(client, SECRET, "server", "1")
    assert str(refused.value) == refusal[2]
    assert client.sent == [refusal]


def right_proof(client: Scripted) -> bytes:
    _, nonce, _ = client.sent[0]
    return handshake._proof(SECRET, b"client", msgpack.packb(HELLO), nonce)


@pytest.mark.parametrize(
    "answer",
    [
        lambda client: ("proof",),
        lambda client: ("proof", right_proof(client), 1),
        lambda client: ("prove", right_proof(client)),
        lambda client: ("proof", right_proof(client)[:-1]),
        lambda client: ("proof", right_proof(client).hex()),
        lambda client: ("proof", None),
        lambda client: (),
        lambda client: b"\xc1",
        lambda client: b"",
    ],
)
async def test_wrong_or_malformed_handshake_proof_is_refused(
    answer: Callable[[Any], object],
) -> None:
    client = Scripted(lambda _: HELLO, answer)
    with pytest.raises(HandshakeError, match="the client does not know the cluster's secret"):
        await handshake.receive(client, SECRET, "server", "1")
    _, refusal = client.sent
    assert refusal == ("refused", "secret", "the client does not know the cluster's secret")


async def test_right_handshake_proof_is_answered_with_a_welcome() -> None:
    client = Scripted(lambda _: HELLO, lambda client: ("proof", right_proof(client)))
    assert await handshake.receive(client, SECRET, "server", "1") == "client#1"
    (word, nonce, _), welcome = client.sent
    assert (word, len(nonce), welcome) == ("challenge", 32, ("welcome",))


def right_challenge(server: Scripted) -> tuple[object, ...]:
    nonce = b"n" * 32
    hello = msgpack.packb(server.sent[0])
    return ("challenge", nonce, handshake._proof(SECRET, b"server", hello, nonce))


NO_PROTOCOL = "server does not speak the protocol: no "


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([lambda _: ("refused", "secret", "why")], "server refused the connection: why"),
        ([lambda _: ("refused", "protocol", "why")], "server refused the connection: why"),
        ([lambda _: ("refused", "why")], f"{NO_PROTOCOL}challenge came"),
        ([lambda _: ("refused", "process", "why", 1)], f"{NO_PROTOCOL}challenge came"),
        ([lambda server: right_challenge(server)[:2]], f"{NO_PROTOCOL}challenge came"),
        ([lambda server: (*right_challenge(server), 1)], f"{NO_PROTOCOL}challenge came"),
        ([lambda server: ("charge", *right_challenge(server)[1:])], f"{NO_PROTOCOL}challenge came"),
        ([lambda _: b"\xc1"], f"{NO_PROTOCOL}challenge came"),
        ([lambda _: ()], f"{NO_PROTOCOL}challenge came"),
        ([lambda _: ("challenge", "n", bytes(32))], "server does not know the cluster's secret"),
        ([lambda _: ("challenge", b"n", "proof")], "server does not know the cluster's secret"),
        ([lambda _: ("challenge", b"n", bytes(32))], "server does not know the cluster's secret"),
        ([right_challenge, lambda _: ("welcome", 1)], f"{NO_PROTOCOL}welcome came"),
        ([right_challenge, lambda _: ("farewell",)], f"{NO_PROTOCOL}welcome came"),
        ([right_challenge, lambda _: ()], f"{NO_PROTOCOL}welcome came"),
        ([right_challenge, lambda _: ("refused", "secret", "why")], "server refused the connec"),
    ],
)
async def test_client_refuses_a_server_with_an_unexpected_answer(
    answers: list[Callable[[Any], object]], reason: str
) -> None:
    server = Scripted(*answers)
    with pytest.raises(HandshakeError) as refused:
        await handshake.introduce(server, SECRET, "client#1", "server", "1")
    assert str(refused.value).startswith(reason)
    assert len(server.sent) == len(answers)


async def test_client_learns_that_another_process_listens_at_the_address() -> None:
    server = Scripted(lambda _: ("refused", "process", "this is another"))
    with pytest.raises(RpcConnectionError) as away:
        await handshake.introduce(server, SECRET, "client#1", "server", "1")
    assert not isinstance(away.value, HandshakeError)
    assert str(away.value) == "server is not there any more: this is another"


async def test_accepted_client_has_sent_a_hello_and_a_valid_proof() -> None:
    server = Scripted(right_challenge, lambda _: ("welcome",))
    await handshake.introduce(server, SECRET, "client#1", "server", "1")
    hello, proof = server.sent
    assert (*hello[:2], *hello[3:]) == (*HELLO[:2], *HELLO[3:])
    assert len(hello[2]) == 32
    expected = handshake._proof(SECRET, b"client", msgpack.packb(hello), b"n" * 32)
    assert proof == ("proof", expected)
