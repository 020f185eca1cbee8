"""Finding out whether a peer lives: registration and heartbeats."""

__all__ = ["heartbeat", "registration"]
