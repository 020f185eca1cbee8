"""Defines the job graph that a user submits, and functions that need only the job graph."""

__all__ = [
    "checkpoint_configuration",
    "distribution",
    "job_graph",
    "validation",
]
