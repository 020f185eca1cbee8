"""Checkpoints: the decisions of the coordinator, and who is given which state at a restore."""

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
