"""Decides about a job's checkpoints, and assigns restored state to tasks."""

__all__ = [
    "actions",
    "completed_checkpoints",
    "coordinator",
    "earlier_checkpoints",
    "events",
    "failures",
    "messages",
    "operators_with_state",
    "plan",
    "properties",
    "restores",
    "state_assignment",
    "statistics",
]
