"""Operator coordinators: user code of vertices that runs in processes beside the JobMaster."""

__all__ = ["processes", "runner", "spark_driver_process", "user_code_process"]
