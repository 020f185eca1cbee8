"""What users implement, and what it is given."""

__all__ = [
    "async_functions",
    "batch_functions",
    "coroutines",
    "functions",
    "metrics",
    "output_tag",
    "runtime_context",
    "signatures",
    "window_functions",
]
