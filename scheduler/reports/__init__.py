"""Defines reports for users about jobs and about the cluster."""

__all__ = [
    "checkpoint_statistics",
    "execution_info",
    "job_info",
    "spans",
]
