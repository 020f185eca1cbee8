"""The job graph: what a user submits, and what follows from it alone."""

__all__ = [
    "checkpoint_configuration",
    "distribution",
    "job_graph",
    "validation",
    "vertex_operator",
]
