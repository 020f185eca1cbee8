"""The process of a stream job that runs the enumerators of its sources, which are user code, and
knows where its results can be collected."""

__all__ = ["endpoint"]
