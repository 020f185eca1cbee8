"""Decides what a JobMaster does with its job, from the start of the job to its end."""

__all__ = [
    "coordinator_events",
    "job_execution",
    "job_scheduler",
    "job_scheduler_actions",
    "take_over",
    "transition_loop",
    "transitions",
]
