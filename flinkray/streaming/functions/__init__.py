"""The functions that users implement, and the objects that these functions get."""

__all__ = [
    "async_functions",
    "functions",
    "global_aggregates",
    "metrics",
    "models",
    "output_tag",
    "runtime_context",
    "signatures",
]
