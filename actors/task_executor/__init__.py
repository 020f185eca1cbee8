"""The TaskExecutor: the process that has slots and runs tasks in them."""

__all__ = ["endpoint", "host", "task_runners"]
