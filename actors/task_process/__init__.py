"""The task process: runs user code in a slot, and keeps results until other tasks have read them.

A TaskExecutor starts task processes and sends them tasks. It never loads user code itself.
"""

__all__ = ["code_failure", "collected_results", "endpoint", "task_runtime"]
