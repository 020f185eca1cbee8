"""The RPC service on Ray."""

__all__ = [
    "dialler",
    "directory",
    "head",
    "service",
]
