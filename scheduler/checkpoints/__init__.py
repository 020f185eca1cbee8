"""Checkpoints: the coordinator's decisions, and the assignment of state to tasks at a restore."""

__all__ = [
    "actions",
    "completed_checkpoints",
    "coordinator",
    "errors",
    "messages",
    "operators_with_state",
    "plan",
    "properties",
    "restored_vertices",
    "restores",
    "state_assignment",
    "statistics",
]
