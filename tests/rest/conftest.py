"""An endpoint, served for a cluster in a thread of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from flinkray.actors.gateways import DispatcherGateway
from flinkray.core.config import ReadableConfig
from flinkray.rest.server import RestServer, RestSettings
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.rest.http import TOKEN, Asker

T = TypeVar("T")


class Counting:
    """The cluster, and what it was asked."""

    def __init__(self, cluster: ThreadedCluster) -> None:
        self._dispatcher = cluster.session.dispatcher
        self.questions: list[str] = []

    async def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None,
    ) -> T:
        self.questions.append(question)
        return await self._dispatcher.ask(question, call, timeout)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    storage = str(tmp_path_factory.mktemp("storage"))
    with threaded_cluster(storage, configuration=QUICK_RESTARTS) as cluster:
        yield cluster


@pytest.fixture
def counting(cluster: ThreadedCluster) -> Counting:
    return Counting(cluster)


def settings(**values: str) -> RestSettings:
    """Any free port and TOKEN, unless *values* say otherwise: option names with _ for dots."""
    given = {name.replace("__", "-").replace("_", "."): value for name, value in values.items()}
    return RestSettings.of(ReadableConfig({"rest.bind-port": "0", "rest.token": TOKEN, **given}))


@pytest.fixture
def ask(cluster: ThreadedCluster, counting: Counting) -> Iterator[Asker]:
    """Every look is a new one here."""
    clock = cluster.mini.client.clock
    server = RestServer(counting, settings(web_refresh__interval="1 ms"), clock.monotonic)
    cluster.session.run(server.start())
    try:
        yield Asker(server.url)
    finally:
        cluster.session.run(server.close())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For checkpoints and savepoints."""
    return tmp_path / "checkpoints"
