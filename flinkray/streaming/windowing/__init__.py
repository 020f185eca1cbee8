"""Windows: assigners, triggers, evictors and the operators that use them."""

__all__ = [
    "aligned",
    "assigners",
    "contents",
    "evictors",
    "operator",
    "triggers",
    "window",
]
