"""The process that holds a job's slots: the SlotPool."""

__all__ = ["endpoint"]
