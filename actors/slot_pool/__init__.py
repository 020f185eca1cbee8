"""The SlotPool: the process that holds the slots of one job."""

__all__ = ["endpoint"]
