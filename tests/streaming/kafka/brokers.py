"""Brokers to test against, and what tests do to them with a client of their own.

Two implementations of the protocol, neither of which is Apache Kafka: ``noida-db`` (PyPI), a broker
in a process of its own with transactions, fencing and isolation; and librdkafka's mock cluster,
which has several brokers and faults on demand, but shows what was aborted and fences nobody.  With
``FLINKRAY_TEST_KAFKA=host:port`` tests use that cluster in place of the first.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from flinkray.testing import wait_until
from tests.ray_client_server import free_port

_TIMEOUT = 20.0
"""Seconds."""


class Broker:
    """A cluster, under a name that the test's topics begin with."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def topic(self, partitions: int = 1) -> str:
        """A new one."""
        name = f"topic-{uuid4().hex[:8]}"
        self.create(name, partitions)
        return name

    def create(self, name: str, partitions: int = 1) -> None:
        keep = {"retention.ms": "-1"}  # tests write records of 1970
        request = [NewTopic(name, partitions, 1, config=keep)]
        self._admin.create_topics(request)[name].result(_TIMEOUT)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(_TIMEOUT)

    def expire(self, topic: str, before: int) -> None:
        """Records of partition 0 before that offset are deleted, as by its retention."""
        request = [TopicPartition(topic, 0, before)]
        (answer,) = self._admin.delete_records(request).values()
        answer.result(_TIMEOUT)

    def grow(self, topic: str, partitions: int) -> None:
        """It has so many partitions from now on."""
        request = [NewPartitions(topic, partitions)]
        self._admin.create_partitions(request)[topic].result(_TIMEOUT)

    def produce(
        self,
        topic: str,
        values: Iterable[str],
        partition: int = 0,
        times: Iterable[int] | None = None,
        **more: Any,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        stamps = iter(times) if times is not None else None
        for value in values:
            if stamps is not None:
                more["timestamp"] = next(stamps)
            producer.produce(topic, value.encode(), partition=partition, **more)
            producer.poll(0)
        assert producer.flush(_TIMEOUT) == 0

    def tombstone(self, topic: str, key: bytes) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(topic, None, key, partition=0)
        assert producer.flush(_TIMEOUT) == 0

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        """Of partition 0."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
        consumer.close()

    @contextmanager
    def transaction(self, name: str) -> Iterator[Producer]:
        """Open, until the test ends it."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": name})
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
        yield producer

    def read(
        self, topic: str, partitions: Sequence[int] = (0,), isolation: str = "read_committed"
    ) -> dict[int, list[str]]:
        """All there is, by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: dict[int, list[str]] = {partition: [] for partition in partitions}
        left = set(partitions)
        while left:
            message = consumer.poll(_TIMEOUT)
            assert message is not None, f"no end of {topic}: {found}"
            error = message.error()
            if error is None:
                found[cast(int, message.partition())].append(cast(bytes, message.value()).decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(cast(int, message.partition()))
            else:
                raise KafkaException(error)
        consumer.close()
        return found

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        (answer,) = consumer.committed([TopicPartition(topic, partition)], _TIMEOUT)
        consumer.close()
        return answer.offset if answer.offset >= 0 else None


class MockBroker(Broker):
    """librdkafka's, of three brokers in this process; lives as long as this object."""

    def __init__(self) -> None:
        self._cluster = Producer({"test.mock.num.brokers": 3, "log_level": 0})
        metadata = self._cluster.list_topics(timeout=_TIMEOUT)
        super().__init__(",".join(f"{b.host}:{b.port}" for b in metadata.brokers.values()))

    def topic(self, partitions: int = 1) -> str:
        """It creates topics when they are written to, with four partitions."""
        assert partitions <= 4
        name = f"topic-{uuid4().hex[:8]}"
        producer = Producer({"bootstrap.servers": self.servers})
        producer.list_topics(name, _TIMEOUT)
        return name


@contextmanager
def broker_process(directory: Path) -> Iterator[Broker]:
    """A broker of its own."""
    port = free_port()
    program = _program()
    assert program is not None
    arguments = ["start", "--data-dir", str(directory / "data"), "--only", "kafka"]
    log = directory / "broker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program), *arguments, "--kafka-port", str(port)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: _answers(port), _TIMEOUT, "the broker")
        yield Broker(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _program() -> Path | None:
    """Of the broker; None: it is not installed, or this is a platform that it has none for."""
    package = find_spec("noida_db")
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).with_name("noida-db")
    return program if os.access(program, os.X_OK) else None


def why_not() -> str:
    """Why there is no broker to test against; empty: there is one."""
    if os.environ.get("FLINKRAY_TEST_KAFKA") or _program() is not None:
        return ""
    return (
        "no broker: noida-db is not installed, or not made for this platform, and "
        "FLINKRAY_TEST_KAFKA=host:port names no cluster"
    )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def any_broker(directory: Path) -> Iterator[Broker]:
    """That of the environment, or one of its own."""
    servers = os.environ.get("FLINKRAY_TEST_KAFKA")
    if servers:
        yield Broker(servers)
    else:
        with broker_process(directory) as broker:
            yield broker
