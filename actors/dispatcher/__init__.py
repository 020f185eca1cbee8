"""The Dispatcher: the process that accepts jobs."""

__all__ = ["endpoint"]
