"""The TaskExecutor: the process that has slots."""

__all__ = ["endpoint", "host", "task_runners"]
