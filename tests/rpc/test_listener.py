"""Where a process waits for its peers: at which addresses, for how many, and what it survives."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from flinkray.rpc.calls.background_tasks import BackgroundTasks
from flinkray.rpc.wire import listener
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.listener import Listener
from flinkray.rpc.wire.tls import Tls, tls_of
from tests.rpc.certificates import ray_tls_environment

GENEROUS = 30.0
"""Seconds for what takes milliseconds."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    made = tls_of(ray_tls_environment(tmp_path_factory.mktemp("listener"), "127.0.0.1"))
    assert made is not None
    return made


class Host:
    """Listens; a peer is welcome when it has said its name, and stays a stranger until then."""

    def __init__(self, tls: Tls | None = None) -> None:
        self.tasks = BackgroundTasks(asyncio.get_running_loop(), "host")
        self.refused: asyncio.Queue[str] = asyncio.Queue()
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.streams: list[FrameStream] = []
        self.listener = Listener(
            self.new_stream,
            self.welcome,
            self.refused.put_nowait,
            self.tasks.create,
            None if tls is None else tls.server,
        )

    def new_stream(self) -> FrameStream:
        self.streams.append(FrameStream())
        return self.streams[-1]

    async def welcome(self, stream: FrameStream) -> None:
        name = b"nobody"
        try:
            name = await stream.receive()
            self.came.put_nowait(name)
            if name.startswith(b"slow"):
                await stream.receive()
        except ConnectionError:
            self.left.put_nowait("an error")
        except asyncio.CancelledError:
            stream.abort("turned away")
            self.left.put_nowait(f"{name.decode()} was turned away")
            raise


@asynccontextmanager
async def hosting(tls: Tls | None = None) -> AsyncIterator[Host]:
    host = Host(tls)
    try:
        yield host
    finally:
        await host.listener.close()
        for stream in host.streams:
            stream.abort("the test is over")
        under_way = host.tasks.cancel()
        if under_way:
            await asyncio.wait(under_way)


async def coming(port: int, name: bytes, address: str = "127.0.0.1") -> FrameStream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(FrameStream, address, port)
    stream.send(name)
    return stream


async def within(waiting: Awaitable[object]) -> object:
    return await asyncio.wait_for(waiting, GENEROUS)


async def test_peers_connect_by_tcp_until_the_listener_is_closed() -> None:
    async with hosting() as host:
        port = host.listener.listen_tcp("127.0.0.1")
        assert not host.listener.has_tls
        first = await coming(port, b"first")
        assert await within(host.came.get()) == b"first"
        second = await coming(port, b"second")
        assert await within(host.came.get()) == b"second"
        await host.listener.close()
        with pytest.raises(OSError, match="Connect call failed"):
            await coming(port, b"late")
        first.close()
        second.close()


async def test_listener_with_an_address_of_another_machine_listens_on_all_interfaces() -> None:
    """As behind a router that translates addresses."""
    async with hosting() as host:
        port = host.listener.listen_tcp("192.0.2.1")
        stream = await coming(port, b"peer")
        assert await within(host.came.get()) == b"peer"
        stream.close()


async def test_listener_with_an_ipv6_address_accepts_ipv6_connections() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with hosting() as host:
        port = host.listener.listen_tcp("::1")
        stream = await coming(port, b"peer", "::1")
        assert await within(host.came.get()) == b"peer"
        stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
async def test_peers_on_the_same_machine_connect_without_tls(tls: Tls) -> None:
    loop = asyncio.get_running_loop()
    async with hosting(tls) as host:
        assert host.listener.has_tls
        path = host.listener.listen_unix(f"flinkray-test-{id(host)}")
        assert path == f"\0flinkray-test-{id(host)}"
        _, stream = await loop.create_unix_connection(FrameStream, path)
        stream.send(b"peer")
        assert await within(host.came.get()) == b"peer"
        stream.close()


async def test_no_local_socket_is_opened_without_abstract_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    async with hosting() as host:
        assert host.listener.listen_unix("flinkray-test") is None


async def test_unknown_client_that_disconnects_makes_room_for_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_STRANGERS", 2)
    monkeypatch.setattr(listener, "PATIENCE", 10 * GENEROUS)
    async with hosting() as host:
        port = host.listener.listen_tcp("127.0.0.1")
        slow = [await coming(port, b"slow %d" % number) for number in range(2)]
        assert {await within(host.came.get()) for _ in slow} == {b"slow 0", b"slow 1"}
        assert host.listener.strangers == 2
        others = [await coming(port, b"other %d" % number) for number in range(2)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert host.came.empty()
        slow[1].close()
        assert {await within(host.came.get()) for _ in others} == {b"other 0", b"other 1"}
        assert host.refused.empty()
        for stream in (*slow, *others):
            stream.close()


async def test_oldest_unknown_client_is_disconnected_for_a_new_one_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_STRANGERS", 2)
    monkeypatch.setattr(listener, "PATIENCE", 0.2)
    loop = asyncio.get_running_loop()
    async with hosting() as host:
        port = host.listener.listen_tcp("127.0.0.1")
        begin = loop.time()
        streams = []
        for number in range(2):
            streams.append(await coming(port, b"slow %d" % number))
            await within(host.came.get())
        streams.append(await coming(port, b"other"))
        assert await within(host.came.get()) == b"other"
        assert loop.time() - begin >= 0.2
        assert await within(host.left.get()) == "slow 0 was turned away"
        assert await within(host.refused.get()) == "it was too slow while 2 strangers were here"
        for stream in streams:
            stream.close()


@pytest.mark.parametrize(
    ("error", "warnings"),
    [
        (ConnectionAbortedError(errno.ECONNABORTED, "it is gone"), []),
        (
            OSError(errno.EMFILE, "too many open files"),
            ["no peer can be accepted: [Errno 24] too many open files"],
        ),
    ],
)
async def test_failed_accept_of_a_client_does_not_stop_the_accept_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OSError,
    warnings: list[str],
) -> None:
    caplog.set_level(logging.INFO, logger=listener.__name__)
    pause = 0.2
    monkeypatch.setattr(listener, "_EXHAUSTED_PAUSE", pause)
    loop = asyncio.get_running_loop()
    accept: Callable[[socket.socket], Awaitable[object]] = loop.sock_accept
    failures = [error]

    async def failing(listening: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with hosting() as host:
        begin = loop.time()
        stream = await coming(host.listener.listen_tcp("127.0.0.1"), b"peer")
        assert await within(host.came.get()) == b"peer"
        assert loop.time() - begin >= (pause if warnings else 0)
        assert caplog.messages == warnings
        stream.close()


async def test_peer_without_tls_is_refused_and_others_still_connect(tls: Tls) -> None:
    loop = asyncio.get_running_loop()
    async with hosting(tls) as host:
        port = host.listener.listen_tcp("127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        refusal = await within(host.refused.get())
        assert str(refusal).startswith("TLS: ")
        await within(reader.read())  # its end of the connection is closed
        writer.close()
        _, stream = await loop.create_connection(FrameStream, "127.0.0.1", port, ssl=tls.client)
        stream.send(b"peer")
        assert await within(host.came.get()) == b"peer"
        assert host.left.empty()
        stream.close()


async def test_silent_peer_on_a_tls_port_is_disconnected_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 0.1)
    async with hosting(tls) as host:
        port = host.listener.listen_tcp("127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert str(await within(host.refused.get())).startswith("TLS: ")
        assert await within(reader.read()) == b""
        assert host.listener.strangers == 0
        writer.close()


def test_tls_server_and_client_require_a_certificate_and_version_1_2(
    tls: Tls,
) -> None:
    for context in (tls.server, tls.client):
        assert context.minimum_version.name == "TLSv1_2"
        assert context.verify_mode.name == "CERT_REQUIRED"
        assert not context.check_hostname
        assert len(context.get_ca_certs()) == 1
