"""The transport by which the channels of a process reach other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flinkray.rpc.wire.tls import Tls
from flinkray.streaming.network.connection import Connection
from flinkray.streaming.network.sockets import DataAddress, DataListener, dial
from flinkray.streaming.network.wire import Wire

Welcome = Callable[[Wire, str], None]
"""Function that takes the wire to a peer that has connected, and the peer's identity."""


class DataTransport(Protocol):
    """Listens for peers and connects to them. Thread-safe."""

    address: DataAddress
    """Address by which other processes find this process."""

    connection_type: type[Connection]
    """Class of the connections over this transport's wires."""

    @property
    def strangers(self) -> int:
        """Number of connected peers that have not yet proved that they belong to the cluster."""

    def dial(self, address: DataAddress, identity: str) -> Wire:
        """Return a new connection to the process at *address*, to which this process introduces
        itself as *identity*. Raises RpcConnectionError."""

    def close(self) -> None:
        """Stop accepting peers."""


class SocketTransport:
    """A transport over sockets that are served by threads."""

    connection_type = Connection

    def __init__(
        self,
        process_name: str,
        incarnation: str,
        secret: bytes,
        host: str,
        node_id: str | None,
        tls: Tls | None,
        connect_timeout: float,
        welcome: Welcome,
    ) -> None:
        self._secret = secret
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._listener = DataListener(
            process_name, incarnation, secret, host, node_id, tls, welcome
        )
        self.address = self._listener.address

    @property
    def strangers(self) -> int:
        return self._listener.strangers

    def dial(self, address: DataAddress, identity: str) -> Wire:
        return dial(
            address,
            self.address.node_id,
            identity,
            self._secret,
            self._tls,
            self._connect_timeout,
        )

    def close(self) -> None:
        self._listener.close()
