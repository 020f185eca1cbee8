"""A task: one subtask of a chain, driven through its mailbox."""
