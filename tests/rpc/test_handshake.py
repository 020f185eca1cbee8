"""The handshake of a new connection, and the options of its socket."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.wire import handshake
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION
from flinkray.rpc.wire.frames import FrameStream

SECRET = b"s" * 32


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name the options otherwise")
async def test_tcp_connection_has_keepalive_options_that_detect_a_lost_machine() -> None:
    """No test can cut the power of a machine, so the socket options are checked."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(FrameStream, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    transport, _ = await loop.create_connection(FrameStream, *address)
    own_end = transport.get_extra_info("socket")
    assert own_end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    asked_for = [
        own_end.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    assert asked_for == [60, 10, 6]
    # it would end connections whose other side lives and does not read
    assert own_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
    assert own_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    transport.abort()
    listener.close()
    await listener.wait_closed()


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
async def test_hello_of_another_version_or_process_or_without_a_nonce_is_refused(
    hello: object, refusal: tuple[str, str, str]
) -> None:
    """RPC-33"""
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
        lambda client: ("proof", client.sent[0][2]),  # the server's own proof
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


async def test_recorded_proof_is_refused_on_another_connection() -> None:
    """Each challenge has its own nonce."""
    recorded: list[bytes] = []

    def prove(client: Scripted) -> object:
        recorded.append(right_proof(client))
        return ("proof", recorded[0])

    await handshake.receive(Scripted(lambda _: HELLO, prove), SECRET, "server", "1")
    replaying = Scripted(lambda _: HELLO, lambda _: ("proof", recorded[0]))
    with pytest.raises(HandshakeError, match="the client does not know the cluster's secret"):
        await handshake.receive(replaying, SECRET, "server", "1")


async def test_client_refuses_a_server_that_replays_a_recorded_challenge() -> None:
    """An impostor at the address of a process cannot use an earlier answer of that process."""
    recorded: list[object] = []

    def challenge(server: Scripted) -> object:
        recorded.append(right_challenge(server))
        return recorded[0]

    server = Scripted(challenge, lambda _: ("welcome",))
    await handshake.introduce(server, SECRET, "client#1", "server", "1")
    with pytest.raises(HandshakeError, match="server does not know the cluster's secret"):
        await handshake.introduce(
            Scripted(lambda _: recorded[0]), SECRET, "client#1", "server", "1"
        )


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
