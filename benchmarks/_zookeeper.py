"""ZooKeeper's real server for as long as a benchmark runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from tests.zookeeper_server import ZooKeeperServer


@contextmanager
def zookeeper() -> Iterator[tuple[str, KazooClient]]:
    """Its address, and a client."""
    server = ZooKeeperServer()
    try:
        server.start()
        znodes = KazooClient(server.hosts)
        znodes.start()
        yield server.hosts, znodes
        znodes.stop()
        znodes.close()
    finally:
        server.close()
