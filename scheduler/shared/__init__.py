"""Defines values that several domains use: states, slots, tasks, failures."""

__all__ = [
    "failure",
    "io_metrics",
    "slots",
    "spark_reports",
    "states",
    "story",
    "taking_over",
    "tasks",
    "transition",
]
