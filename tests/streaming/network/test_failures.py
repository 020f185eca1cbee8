"""Failures of processes, tasks and strangers at the connections of tasks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from flinkray.rpc.wire import codec
from flinkray.rpc.wire.listener import MAX_LINES, MAX_STRANGERS
from flinkray.rpc.wire.tls import Tls, tls_of
from flinkray.streaming.network import (
    ChannelSource,
    ConsumerLostError,
    NetworkEnvironment,
    NetworkSettings,
    PartitionReleasedError,
    PartitionUnavailableError,
    ProducerLostError,
    sockets,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Block
from flinkray.testing import ManualClock
from tests.rpc.certificates import ray_tls_environment
from tests.streaming.network.networks import (
    PATIENCE,
    Reading,
    Writing,
    in_background,
    network,
    read,
)


@contextmanager
def other_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Running, with the first line that it has written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.streaming.network.other_process", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.kill
def test_consumer_of_a_killed_process_fails_at_once_and_names_both_tasks() -> None:
    with network() as make, other_process("produce") as (process, line):
        address = codec.decode(bytes.fromhex(line))
        reading = Reading(make("here").create_gate("Sink (1/2)", [ChannelSource("p", 0, address)]))
        assert isinstance(reading.next()[1], Block)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ProducerLostError) as caught:
            reading.next()
        assert caught.value.producer == "task Map (1/2) in the producer"
        assert caught.value.consumer == "task Sink (1/2) in here"
        assert caught.value.retryable
        assert "connection" in str(caught.value)


@pytest.mark.kill
def test_producer_for_a_killed_process_fails_at_once_and_names_both_tasks() -> None:
    with network() as make:
        here = make("here")
        writing = Writing(here.create_partition("p", "Source (1/1)", 1, buffer_timeout=0))
        writing.put(Block([1]))
        with other_process("consume", codec.encode(here.address).hex()) as (process, line):
            assert line == "read"
            os.kill(process.pid, signal.SIGKILL)

            def write() -> None:
                while True:
                    writing.put(Block(["x" * 100_000]))

            with pytest.raises(ConsumerLostError) as caught:
                in_background(write)()
        assert caught.value.producer == "task Source (1/1) in here"
        assert caught.value.consumer == "task Sink (2/2) in the consumer"


def test_waiting_producer_is_woken_with_an_error_when_its_consumer_closes() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        reading = read(consumer, producer)
        while partition.has_room():
            partition.subpartitions[0].put(Block(["x" * 100_000]))
        woken = threading.Event()
        partition.listen(woken.set)
        reading.gate.close("it was cancelled")
        assert woken.wait(PATIENCE)
        while partition.failure is None:  # what woke it first may have been room
            woken.clear()
            assert woken.wait(PATIENCE)
        with pytest.raises(ConsumerLostError, match=r"task Source .*task Sink .*it was cancelled"):
            partition.has_room()
        with pytest.raises(ConsumerLostError):
            partition.subpartitions[0].put(Block([1]))


@pytest.mark.parametrize("is_local", [True, False])
def test_consumers_of_a_failed_task_raise_an_error_with_its_reason(is_local: bool) -> None:
    with network() as make:
        producer = make("producer")
        consumer = producer if is_local else make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        partition.subpartitions[0].put(Block([1]))
        reading = read(consumer, producer)
        assert isinstance(reading.next()[1], Block)
        producer.fail_partition(partition, "ValueError: no number")
        with pytest.raises(ProducerLostError, match=r"task Sink .*task Source .*no number"):
            reading.next()
        with pytest.raises(PartitionReleasedError, match="no number"):
            partition.subpartitions[0].put(Block([1]))


@pytest.mark.parametrize("is_local", [True, False])
def test_release_of_a_completely_read_partition_fails_no_consumer(is_local: bool) -> None:
    with network() as make:
        producer = make("producer")
        consumer = producer if is_local else make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        consumed = threading.Event()
        partition.on_consumed(consumed.set)
        partition.subpartitions[0].put(Block([1]))
        partition.subpartitions[0].put(END_OF_INPUT)
        reading = read(consumer, producer)
        assert len(reading.rest()) == 1
        assert consumed.wait(PATIENCE)
        producer.release_partition(partition)
        assert reading.gate.poll() is None
        assert partition.failure is None


def test_second_consumer_of_a_subpartition_is_refused() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        partition.subpartitions[0].put(Block([1]))
        read(consumer, producer).next()
        with pytest.raises(ProducerLostError, match="another consumer"):
            read(consumer, producer, consumer="Other").next()
        with pytest.raises(ProducerLostError, match="no subpartition 5"):
            read(consumer, producer, subpartition=5).next()


# --- partitions that are not there yet ------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_consumer_that_waits_for_a_partition_reads_it_as_soon_as_it_is_created(
    is_local: bool,
) -> None:
    with network() as make:
        producer = make("producer", manual_timers=True)
        consumer = producer if is_local else make("consumer", manual_timers=True)
        reading = read(consumer, producer)
        assert reading.gate.poll() is None
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=0)
        partition.subpartitions[0].put(Block([1]))
        partition.subpartitions[0].put(END_OF_INPUT)
        assert len(reading.rest()) == 1


@pytest.mark.parametrize("is_local", [True, False])
def test_missing_partition_fails_its_consumer_after_the_last_retry(is_local: bool) -> None:
    """TM-26: the pauses are 0.1, 0.2, … 6.4 and 10 seconds."""
    clock = ManualClock()
    settings = NetworkSettings(connection_idle_timeout=None)  # no timers but those that are meant
    with network() as make:
        options = {"clock": clock, "manual_timers": True, "settings": settings}
        producer = make("producer", **options)
        consumer = producer if is_local else make("consumer", **options)
        gate = consumer.create_gate("Sink", [ChannelSource("p", 0, producer.address)])
        woken = threading.Event()
        gate.listen(woken.set)
        gate.request()
        for _ in range(8):
            assert gate.poll() is None
            pause = consumer.timers.next_pause(PATIENCE)
            clock.advance(pause)
            consumer.timers.run_due()
        assert woken.wait(PATIENCE)
        with pytest.raises(PartitionUnavailableError, match=r"Sink .*partition p is not found"):
            gate.poll()
        assert clock.monotonic() == pytest.approx(0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 6.4 + 10.0)


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
