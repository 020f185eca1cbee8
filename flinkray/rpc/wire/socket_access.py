"""What a process needs for listeners of its own, beside that of its RPC service."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.rpc.wire.tls import Tls


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Where to listen, and how both sides of a connection prove that they belong together."""

    host: str
    node_id: str
    """Processes with the same one can talk through unix sockets."""
    secret: bytes = field(repr=False)
    """The cluster's."""
    tls: Tls | None
    """Between nodes; None: none."""
