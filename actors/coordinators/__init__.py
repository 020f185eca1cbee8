"""Operator coordinators: user code of vertices that runs in processes beside the JobMaster."""

__all__ = ["processes", "runner", "user_code_process"]
