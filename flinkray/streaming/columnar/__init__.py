"""Operators on Arrow columns that never make a Python object per record."""

__all__ = [
    "conversion",
    "keyed_aggregate",
    "local_aggregate",
    "map_batches",
    "window_aggregate",
    "window_operators",
]
