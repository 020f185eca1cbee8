"""Operator coordinators: user-side code of vertices, kept by the JobMaster."""
