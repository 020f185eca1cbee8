"""Runs a MiniCluster in its own thread, with the client that programs use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flinkray.client.client_session import session_of
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.in_process import connection_to
from flinkray.client.loop_thread import LoopThread
from flinkray.core.config import ReadableConfig
from flinkray.core.resources import ResourceProfile
from flinkray.testing.mini_cluster import MiniCluster


class ThreadedCluster:
    """A MiniCluster in a thread, and its client. The masters, TaskExecutors and task processes are
    simulated processes on one event loop. The threads of the stream tasks and the sockets between
    them are real."""

    def __init__(self, mini: MiniCluster, loop: LoopThread, client: ClusterClient) -> None:
        self.mini = mini
        self.client = client
        self.session = session_of(client)
        self._loop = loop

    def crash(self, kind: str) -> str:
        """Crash the first process whose name begins with *kind*, as by SIGKILL; return its name."""

        async def crash() -> str:
            return self.mini.crash(kind)

        return self._loop.run(crash())

    def crash_together(self, *kinds: str) -> None:
        """Crash the first process of each of *kinds* in one step, so that no process notices one
        crash before the others have happened."""

        async def crash() -> None:
            for kind in kinds:
                self.mini.crash(kind)

        self._loop.run(crash())

    def crash_all(self, kind: str) -> None:
        """Crash all processes whose names begin with *kind*, as by SIGKILL."""

        async def crash() -> None:
            self.mini.crash_all(kind)

        self._loop.run(crash())


@contextmanager
def threaded_cluster(
    storage_dir: str, *nodes: ResourceProfile, configuration: Mapping[str, str] | None = None
) -> Iterator[ThreadedCluster]:
    """Context manager: run a MiniCluster and its client in a thread. The arguments are those of
    :class:`MiniCluster`."""
    loop = LoopThread("mini cluster")
    try:
        mini, client = loop.run(_start(loop, storage_dir, nodes, configuration))
        try:
            yield ThreadedCluster(mini, loop, client)
        finally:
            loop.run(mini.__aexit__(None, None, None))
    finally:
        loop.close()


async def _start(
    loop: LoopThread,
    storage_dir: str,
    nodes: tuple[ResourceProfile, ...],
    configuration: Mapping[str, str] | None,
) -> tuple[MiniCluster, ClusterClient]:
    mini = MiniCluster(storage_dir, *nodes, configuration=configuration)
    await mini.__aenter__()
    connection = await connection_to(mini, "local")
    client = ClusterClient(
        loop,
        connection,
        "local",
        on_close=connection.close,
        configuration=ReadableConfig(configuration),
    )
    return mini, client
