"""The life of a job: the decisions of a JobMaster."""

__all__ = [
    "coordinator_events",
    "input_splits",
    "job_execution",
    "job_scheduler",
    "job_scheduler_actions",
    "take_over",
    "transition_loop",
    "transitions",
]
