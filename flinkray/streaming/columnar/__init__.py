"""Operators on Arrow columns. They make no Python object per record."""

__all__ = [
    "arrow_batches",
    "conversion",
    "grouping",
    "infer",
    "keyed_aggregate",
    "local_aggregate",
    "panes",
    "window_aggregate",
    "window_operators",
]
