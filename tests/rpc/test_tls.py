"""Connections between nodes of a Ray cluster that has TLS on."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import ray

from flinkray.core.errors import ConfigurationError, HandshakeError, RpcConnectionError
from flinkray.rpc import RayRpcService
from flinkray.rpc.calls.background_tasks import BackgroundTasks
from flinkray.rpc.ray.directory import ProcessRecord, RayDirectory
from flinkray.rpc.wire.frames import FrameStream
from flinkray.rpc.wire.listener import Listener
from flinkray.rpc.wire.tls import AUTHORITY, CERTIFICATE, KEY, Tls, tls_of
from tests.rpc.certificates import ray_tls_environment
from tests.rpc.endpoints import EchoEndpoint, EchoGateway


@pytest.fixture(scope="module")
def tls_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    address = ray.util.get_node_ip_address()
    return ray_tls_environment(tmp_path_factory.mktemp("tls"), "127.0.0.1", address)


def test_tls_is_off_unless_ray_use_tls_is_set(tls_environment: dict[str, str]) -> None:
    assert tls_of({}) is None
    assert tls_of(tls_environment | {"RAY_USE_TLS": "0"}) is None
    assert tls_of(tls_environment | {"RAY_USE_TLS": "true"}) is not None


@pytest.mark.parametrize("variable", [CERTIFICATE, KEY, AUTHORITY])
def test_missing_or_unreadable_tls_file_is_named(
    tls_environment: dict[str, str], variable: str, tmp_path: Path
) -> None:
    unset = {name: value for name, value in tls_environment.items() if name != variable}
    with pytest.raises(ConfigurationError, match=f"{variable} is not set"):
        tls_of(unset)
    nowhere = str(tmp_path / "nowhere.pem")
    with pytest.raises(ConfigurationError, match=f"{variable} cannot be read.*nowhere.pem"):
        tls_of(tls_environment | {variable: nowhere})
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN NOTHING-----")
    with pytest.raises(ConfigurationError, match=f"{variable}: .*damaged.pem"):
        tls_of(tls_environment | {variable: str(damaged)})


async def _answer_of_host(host: Tls, client: Tls) -> bytes:
    """What a client that comes by TCP is answered; each side has its own certificate."""
    loop = asyncio.get_running_loop()
    welcomed: list[FrameStream] = []
    refused: list[str] = []

    async def welcome(stream: FrameStream) -> None:
        welcomed.append(stream)
        stream.send(await stream.receive() + b", welcome")

    tasks = BackgroundTasks(loop, "host")
    listener = Listener(FrameStream, welcome, refused.append, tasks.create, host.server)
    port = listener.listen_tcp("127.0.0.1")
    stream: FrameStream | None = None
    try:
        _, stream = await loop.create_connection(
            FrameStream, "127.0.0.1", port, ssl=client.client, ssl_handshake_timeout=10
        )
        stream.send(b"hello")
        answer = await stream.receive()
    except (OSError, RpcConnectionError):
        assert welcomed == []
        raise
    else:
        assert refused == []
        return answer
    finally:
        for open_stream in (stream, *welcomed):
            if open_stream is not None:
                open_stream.abort("the test is over")
        await listener.close()
        under_way = tasks.cancel()
        if under_way:
            await asyncio.wait(under_way)


@pytest.fixture(scope="module")
def ours(tls_environment: dict[str, str]) -> Tls:
    tls = tls_of(tls_environment)
    assert tls is not None
    return tls


@pytest.fixture(scope="module")
def foreign_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of another authority."""
    return ray_tls_environment(tmp_path_factory.mktemp("foreign"), "127.0.0.1")


async def test_client_and_host_with_certificates_of_one_authority_can_talk(ours: Tls) -> None:
    assert await _answer_of_host(ours, ours) == b"hello, welcome"


async def test_client_rejects_a_host_certificate_of_another_authority(
    ours: Tls, tls_environment: dict[str, str], foreign_environment: dict[str, str]
) -> None:
    """The host would accept the client."""
    false_host = tls_of(foreign_environment | {AUTHORITY: tls_environment[AUTHORITY]})
    assert false_host is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        await _answer_of_host(false_host, ours)


async def test_host_rejects_a_client_certificate_of_another_authority(
    ours: Tls, tls_environment: dict[str, str], foreign_environment: dict[str, str]
) -> None:
    """The client would accept the host."""
    false_client = tls_of(foreign_environment | {AUTHORITY: tls_environment[AUTHORITY]})
    assert false_client is not None
    with pytest.raises((OSError, RpcConnectionError)):
        await _answer_of_host(ours, false_client)


async def test_host_rejects_a_client_without_a_certificate(
    ours: Tls, tls_environment: dict[str, str]
) -> None:
    """The client would accept the host."""
    bare = ssl.create_default_context(cafile=tls_environment[AUTHORITY])
    bare.check_hostname = False
    with pytest.raises((OSError, RpcConnectionError)):
        await _answer_of_host(ours, Tls(ours.server, bare))


async def opened(
    namespace: str, name: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> RayRpcService:
    """A service of a process with that environment."""
    with monkeypatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        return await RayRpcService.open(namespace, name, transport="direct")


@pytest.fixture
async def host(
    ray_cluster: None, tls_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RayRpcService]:
    """With an echo endpoint, for peers that come by TCP."""
    host = await opened(f"rpc-{uuid.uuid4().hex}", "host", tls_environment, monkeypatch)
    EchoEndpoint(host).start()
    await change_record(host, unix_path=None)
    yield host
    await host.close()


async def change_record(host: RayRpcService, /, **changes: object) -> ProcessRecord:
    directory = RayDirectory(host.namespace)
    record = await host.run_blocking(directory.get, host.process_name)
    assert record is not None
    changed = dataclasses.replace(record, **changes)  # type: ignore[arg-type]
    await host.run_blocking(directory.put, host.process_name, changed)
    return changed


@pytest.mark.ray
async def test_calls_over_tcp_are_encrypted_with_tls(
    host: RayRpcService, tls_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = bytearray()
    record = await change_record(host)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100_000):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_host = await asyncio.open_connection(record.host, record.port)
        await asyncio.gather(relay(reader, to_host[1]), relay(to_host[0], writer))

    between = await asyncio.start_server(accept, "127.0.0.1", 0)
    await change_record(host, host="127.0.0.1", port=between.sockets[0].getsockname()[1])
    client = await opened(host.namespace, "client", tls_environment, monkeypatch)
    echo = await client.connect("host/echo", EchoGateway)
    assert await echo.echo("nobody reads this") == "nobody reads this"
    await client.close()
    between.close()
    await between.wait_closed()
    assert len(seen) > 1000
    assert b"nobody reads this" not in seen
    assert b"flinkray" not in seen


@pytest.mark.ray
async def test_client_without_tls_learns_which_variable_to_set(host: RayRpcService) -> None:
    client = await RayRpcService.open(host.namespace, "client")
    with pytest.raises(HandshakeError, match=r"host at .* listens with TLS.*RAY_USE_TLS"):
        await client.connect("host/echo", EchoGateway)
    await client.close()


@pytest.mark.ray
async def test_client_that_speaks_no_tls_is_refused_and_counted(
    host: RayRpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: asyncio.Queue[str] = asyncio.Queue()
    count = host.refuse_frame

    def refuse(peer: str, reason: str) -> None:
        count(peer, reason)
        refused.put_nowait(reason)

    monkeypatch.setattr(host, "refuse_frame", refuse)
    await change_record(host, has_tls=False)
    client = await RayRpcService.open(host.namespace, "client")
    with pytest.raises(RpcConnectionError, match="host/echo"):
        await client.connect("host/echo", EchoGateway)
    assert (await refused.get()).startswith("TLS: ")
    assert host.refused_frames == 1
    await client.close()


@pytest.mark.ray
async def test_client_refuses_a_cluster_certificate_of_another_authority(
    host: RayRpcService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ray_tls_environment(tmp_path / "foreign", "127.0.0.1")
    client = await opened(host.namespace, "client", foreign, monkeypatch)
    with pytest.raises(HandshakeError, match=r"no TLS connection to host at .*certificate"):
        await client.connect("host/echo", EchoGateway)
    await client.close()


@pytest.mark.ray
def test_connections_use_tls_in_a_ray_cluster_with_tls(
    tls_environment: dict[str, str],
) -> None:
    done = subprocess.run(  # a Ray of its own: TLS is for a whole process
        [sys.executable, "-m", "tests.rpc.tls_cluster"],
        env={**os.environ, **tls_environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
