"""The calling side: connections, proxies, what is heard of a peer's end."""

__all__ = [
    "background_tasks",
    "call_context",
    "connection",
    "connection_pool",
    "deadlines",
    "metrics",
    "patience",
    "proxy",
    "tracing",
    "watch",
]
