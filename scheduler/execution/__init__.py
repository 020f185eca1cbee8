"""Defines the execution graph (subtasks with their attempts and results), and failover."""

__all__ = [
    "execution_graph",
    "failover_strategy",
    "job_archive",
    "partition_tracker",
    "pending_restarts",
    "regions",
    "repeated_errors",
    "restart_strategy",
    "scheduling_strategy",
]
