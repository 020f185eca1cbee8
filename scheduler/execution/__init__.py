"""Defines the execution graph (subtasks with their attempts and results), and failover."""

__all__ = [
    "execution_graph",
    "job_archive",
    "regions",
    "restarts",
]
