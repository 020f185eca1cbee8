"""What people are told of jobs and of the cluster."""

__all__ = ["exception_history", "execution_info", "execution_table", "job_info", "json_plan"]
