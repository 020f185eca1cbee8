"""Operator coordinators: user-side code of vertices, kept by the JobMaster."""

__all__ = ["format_runner", "spark_drivers", "stream_coordinator", "user_code_process"]
