"""The process that takes jobs: the Dispatcher."""

__all__ = ["endpoint"]
