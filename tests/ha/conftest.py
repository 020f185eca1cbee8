"""The stores that tests of them are held to: in memory, in local files, behind pyarrow, and on
ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from flinkray.ha import Directory, MemoryDirectory, StandaloneHaServices, open_directory
from flinkray.ha.arrow_directory import ArrowDirectory
from flinkray.ha.zookeeper import ZooKeeperClient
from flinkray.ha.zookeeper.directory import ZooKeeperDirectory
from tests.zookeeper_server import ZooKeeperServer, running

_roots = itertools.count()


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """A server that every test has to itself below a root of its own."""
    with running() as server:
        yield server


@pytest.fixture
def root() -> str:
    """No other test's."""
    return f"flinkray/{next(_roots)}"


@pytest.fixture(params=["memory", "local", "pyarrow", "zookeeper"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    if request.param == "memory":
        yield MemoryDirectory()
    elif request.param == "local":
        yield open_directory(str(tmp_path / "not yet there"))
    elif request.param == "pyarrow":
        yield ArrowDirectory.from_uri((tmp_path / "by-arrow").as_uri())
    else:
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        with on_zookeeper(server, request.getfixturevalue("root"), tmp_path) as directory:
            yield directory


@contextmanager
def on_zookeeper(
    server: ZooKeeperServer, root: str, tmp_path: Path
) -> Iterator[ZooKeeperDirectory]:
    """Its writer leads as long as the session lives."""
    client = ZooKeeperClient(server.hosts, root, 30.0)
    asyncio.run(client.connect(30))
    fence = client.path("fence")
    client.blocking(lambda zk: zk.create(fence, ephemeral=True, makepath=True))
    storage = open_directory(str(tmp_path / "contents"))
    try:
        yield ZooKeeperDirectory(client, client.path("stores"), storage, lambda: fence)
    finally:
        asyncio.run(client.close())


@pytest.fixture
def services(directory: Directory, executor: Executor) -> StandaloneHaServices:
    return StandaloneHaServices(directory, executor)
