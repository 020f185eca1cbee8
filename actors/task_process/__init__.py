"""What runs in the process of a slot: user code, and the results that tasks hand on to each other.

A TaskExecutor keeps these processes and tells them what to run; it never loads user code itself.
"""

__all__ = ["collected_results", "endpoint"]
