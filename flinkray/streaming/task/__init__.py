"""A task: one subtask of a chain, driven through its mailbox."""

__all__ = ["mailbox", "task", "task_loop"]
