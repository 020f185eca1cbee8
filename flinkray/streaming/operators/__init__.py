"""Stream operators, one module for each kind."""

__all__ = [
    "async_wait",
    "basic",
    "broadcast",
    "broadcast_first",
    "collector",
    "groups",
    "interval_join",
    "keyed",
    "look_up",
    "operator",
    "process",
    "queryable",
    "sorted_inputs",
    "source",
    "timestamps",
    "two_inputs",
]
