"""The job graph that a user submits, and functions that only need the job graph."""

__all__ = [
    "checkpoint_configuration",
    "distribution",
    "job_graph",
    "validation",
    "vertex_operator",
]
