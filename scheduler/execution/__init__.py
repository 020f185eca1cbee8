"""Defines the execution graph (subtasks with their attempts and results), and failover."""

__all__ = [
    "execution_graph",
    "job_archive",
    "pending_restarts",
    "regions",
    "repeated_errors",
    "restart_strategy",
]
