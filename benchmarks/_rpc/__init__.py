"""The parts of ``benchmarks/rpc.py``; they are importable, as processes and messages need it."""
