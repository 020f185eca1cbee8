"""Holds what a process needs to open listeners of its own, beside that of its RPC service."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.rpc.wire.tls import Tls


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """The host to listen on, and the means by which both sides of a connection authenticate."""

    host: str
    node_id: str
    """The id of the node; processes with the same id can use Unix sockets."""
    secret: bytes = field(repr=False)
    """The secret of the cluster."""
    tls: Tls | None
    """The TLS contexts for connections between nodes; None: TLS is off."""
