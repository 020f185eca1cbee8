"""Operators on Arrow columns. They make no Python object per record."""

__all__ = [
    "conversion",
    "grouping",
    "key_and_value",
    "keyed_aggregate",
    "keyed_batches",
    "local_aggregate",
    "local_window_aggregate",
    "map_batches",
    "panes",
    "serialize_batches",
    "views",
    "window_aggregate",
    "window_operators",
]
