"""The slots of one TaskExecutor."""
