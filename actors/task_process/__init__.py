"""The task process: it runs user code in a slot and keeps the results that tasks pass on.

A TaskExecutor starts these processes and tells them what to run.  It never loads user code itself.
"""

__all__ = ["code_failure", "collected_results", "endpoint", "task_runtime"]
