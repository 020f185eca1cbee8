"""Bytes between two processes: frames, envelopes, transports."""

__all__ = [
    "call_transport",
    "codec",
    "envelope",
    "fragments",
    "frames",
    "handshake",
    "listener",
    "tls",
    "transport",
]
