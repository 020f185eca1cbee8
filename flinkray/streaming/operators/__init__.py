"""The operators: one module for each kind."""

__all__ = [
    "basic",
    "broadcast",
    "interval_join",
    "keyed",
    "operator",
    "process",
    "sorted_inputs",
    "source",
    "timestamps",
    "two_inputs",
]
