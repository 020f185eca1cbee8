"""The job graph: what a user submits, and what follows from it alone."""

__all__ = ["distribution", "job_graph", "max_parallelism", "validation"]
