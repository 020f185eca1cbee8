"""The functions that users implement, and the objects that these functions get."""

__all__ = [
    "async_functions",
    "batch_functions",
    "coroutines",
    "functions",
    "global_aggregates",
    "metrics",
    "output_tag",
    "runtime_context",
    "signatures",
    "window_functions",
]
