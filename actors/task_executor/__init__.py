"""The process that has slots: the TaskExecutor."""

__all__ = ["endpoint", "host", "task_runners"]
