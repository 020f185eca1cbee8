"""The life of a job: the decisions of a JobMaster."""

__all__ = ["input_splits", "job_execution", "job_scheduler", "job_scheduler_actions"]
