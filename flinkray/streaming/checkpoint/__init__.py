"""What a task does for checkpoints: barriers, its snapshot, and the way back to one."""
