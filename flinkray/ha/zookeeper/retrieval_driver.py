"""Finds the leader of a component by its ``connection_info`` znode."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.exceptions import NoNodeError

from flinkray.ha.elections import LeaderInformation, LeaderRetrievalDriver
from flinkray.ha.zookeeper.client import ZooKeeperClient
from flinkray.ha.zookeeper.election_driver import CONNECTION_INFO, decode_information
from flinkray.ha.zookeeper.watching import Watching


class ZooKeeperRetrievalDriver(LeaderRetrievalDriver):
    """Follows the leader of a component through ZooKeeper, for one listener."""

    def __init__(self, client: ZooKeeperClient, component: str) -> None:
        self._client = client
        self._path = client.path(component, CONNECTION_INFO)
        self._watching: _Published | None = None

    @property
    def outage(self) -> str | None:
        return self._client.outage

    def start(
        self,
        on_information: Callable[[LeaderInformation | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._watching = _Published(self._client, self._path, on_information, on_error)
        self._watching.start()

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            await watching.close()


class _Published(Watching):
    def __init__(
        self,
        client: ZooKeeperClient,
        path: str,
        on_information: Callable[[LeaderInformation | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(client, on_error)
        self._path = path
        self._on_information = on_information

    def connection_changed(self, is_connected: bool) -> None:
        """Report that no leader is known while there is no connection."""
        if not is_connected:
            self.client.to_loop(lambda: self._tell(None))

    async def look(self) -> None:
        epoch = self.client.epoch
        information = None
        if await self.client.do(lambda zk: zk.exists_async(self._path, self.wake)):
            try:
                data, _ = await self.client.do(lambda zk: zk.get_async(self._path))
            except NoNodeError:
                return  # the watch will report it
            information = decode_information(data)
        if self.client.epoch == epoch:
            self._tell(information)

    def _tell(self, information: LeaderInformation | None) -> None:
        if not self._closed:
            self._on_information(information)
