"""Bytes between two processes: frames, envelopes, transports."""

__all__ = [
    "call_transport",
    "call_transport_server",
    "codec",
    "envelope",
    "fragments",
    "frames",
    "handshake",
    "listener",
    "packing",
    "refusals",
    "socket_access",
    "tls",
    "transport",
]
