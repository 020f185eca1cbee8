"""What a task does for checkpoints: barriers, its snapshot, and the way back to one."""

__all__ = ["barrier_handler", "subtask_checkpoints"]
