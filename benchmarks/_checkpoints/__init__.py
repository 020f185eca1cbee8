"""The figures of ``benchmarks/checkpoints.py``: of one subtask's state, and of jobs."""
