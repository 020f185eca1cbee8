"""The JobMaster: the process that runs one job."""

__all__ = ["endpoint"]
