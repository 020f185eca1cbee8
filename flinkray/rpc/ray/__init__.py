"""The RPC service on Ray."""

__all__ = ["dialler", "head", "service"]
