"""The programs of ``benchmarks/streams.py``, what runs them, and what they stand beside."""
