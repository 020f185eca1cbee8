"""Operator coordinators: user-side code of vertices, kept by the JobMaster."""

__all__ = ["processes", "runner", "user_code_process"]
