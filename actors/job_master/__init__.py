"""The process that runs one job: the JobMaster."""

__all__ = ["endpoint"]
