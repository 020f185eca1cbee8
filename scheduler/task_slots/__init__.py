"""Manages the slots of one TaskExecutor."""

__all__ = ["task_slot_table"]
