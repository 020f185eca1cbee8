"""The contenders of benchmarks/channels.py, each with its end in another process."""
