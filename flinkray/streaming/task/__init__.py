"""A task: one subtask of a chain, driven through its mailbox."""

__all__ = [
    "task",
    "task_mailbox",
    "task_thread",
]
