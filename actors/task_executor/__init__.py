"""The process that has slots: the TaskExecutor."""
