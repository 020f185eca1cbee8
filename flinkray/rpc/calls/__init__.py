"""The calling side: connections, proxies, and watches that report the end of an endpoint."""

__all__ = [
    "background_tasks",
    "call_context",
    "connection",
    "connection_pool",
    "deadlines",
    "metrics",
    "peer_deadlines",
    "proxy",
    "tracing",
    "watch",
]
