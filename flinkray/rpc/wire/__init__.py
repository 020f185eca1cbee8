"""Bytes between two processes: frames, envelopes, transports."""

__all__ = [
    "carried",
    "carrier",
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
