"""Defines reports for users about jobs and about the cluster."""

__all__ = [
    "checkpoint_statistics",
    "exception_history",
    "execution_info",
    "execution_table",
    "job_info",
    "job_settings",
    "json_plan",
    "spans",
]
