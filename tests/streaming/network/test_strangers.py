"""Who connects to a data socket and does not prove that it belongs to the cluster."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from flinkray.rpc.wire.listener import MAX_LINES, MAX_STRANGERS
from flinkray.rpc.wire.tls import Tls, tls_of
from flinkray.streaming.network import NetworkEnvironment, sockets
from flinkray.streaming.records.elements import END_OF_INPUT, Block
from tests.rpc.certificates import ray_tls_environment
from tests.streaming.network.networks import PATIENCE, Writing, network, read

MANY = 2 * MAX_STRANGERS + 50


def half_open(environment: NetworkEnvironment, count: int, stack: ExitStack) -> list[socket.socket]:
    """As many as there are places for at once come to the accepting thread; the others wait."""
    strangers = []
    for _ in range(count):
        stranger = socket.create_connection(("127.0.0.1", environment.address.port), PATIENCE)
        strangers.append(stack.enter_context(stranger))
    return strangers


def records_pass(producer: NetworkEnvironment, consumer: NetworkEnvironment) -> None:
    writing = Writing(producer.create_partition("p", "Source (1/1)", 1, buffer_timeout=0))
    writing.put(Block([1, 2, 3]))
    writing.put(END_OF_INPUT)
    (block,) = read(consumer, producer).rest_of_records()
    assert isinstance(block, Block)
    assert list(block.values) == [1, 2, 3]


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Tls | None:
    return tls_of(ray_tls_environment(tmp_path)) if request.param == "tls" else None


def test_half_open_connections_use_no_threads_and_barely_delay_others(
    monkeypatch: pytest.MonkeyPatch, tls: Tls | None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "PATIENCE", 0.05)
    with network() as make, ExitStack() as stack:
        producer = make("producer", tls=tls)
        consumer = make("consumer", tls=tls, node_id="another")
        threads = threading.active_count()
        strangers = half_open(producer, MANY, stack)
        assert threading.active_count() <= threads
        records_pass(producer, consumer)
        assert producer.strangers <= MAX_STRANGERS
        for stranger in strangers[: MANY - MAX_STRANGERS]:  # turned away to make room
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
    refusals = [line for line in caplog.messages if "producer refused a peer" in line]
    assert 0 < len(refusals) <= 2 * MAX_LINES
    assert any("more refusals are not told" in line for line in caplog.messages)


@pytest.mark.parametrize("opening", [b"", b"\0", b"\0\0\0\x20half of a hello"])
def test_handshake_of_a_slow_client_ends_after_one_timeout_in_total(
    monkeypatch: pytest.MonkeyPatch, tls: Tls | None, opening: bytes
) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_TIMEOUT", 0.3)
    with network() as make, ExitStack() as stack:
        producer = make("producer", tls=tls)
        (stranger,) = half_open(producer, 1, stack)
        stranger.sendall(opening)
        stranger.settimeout(0.02)
        came: bytes | None = None
        for _ in range(int(PATIENCE / 0.02)):
            with suppress(ConnectionError):
                if opening:
                    stranger.send(b"\0")  # a byte now and then
            try:
                came = stranger.recv(4096)
            except TimeoutError:
                continue
            except ConnectionError:
                came = b""
            if not came:
                break
        assert came == b""
        assert producer.strangers == 0
        records_pass(producer, make("consumer", tls=tls, node_id="another"))


def test_many_connections_with_garbage_write_only_a_few_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with network() as make, ExitStack() as stack:
        producer = make("producer")
        for number in range(200):
            (stranger,) = half_open(producer, 1, stack)
            stranger.sendall(bytes([number]) * 4000)
            with suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
        records_pass(producer, make("consumer"))
    assert len(caplog.messages) <= 2 * MAX_LINES
    assert sum(map(len, caplog.messages)) < 10_000
