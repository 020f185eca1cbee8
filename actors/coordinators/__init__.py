"""Operator coordinators: user code of vertices that runs in processes beside the JobMaster."""

__all__ = [
    "process",
    "processes",
    "runner",
    "spark_driver_process",
    "stream_coordinator_process",
]
