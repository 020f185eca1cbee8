"""A task's part in checkpoints: barriers, snapshots and restored state."""

__all__ = ["barrier_handler", "subtask_checkpoints"]
