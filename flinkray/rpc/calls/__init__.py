"""The calling side: connections, proxies, what is heard of a peer's end."""
