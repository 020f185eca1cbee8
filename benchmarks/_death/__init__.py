"""The parts of ``benchmarks/death_watch.py``; they are importable, as processes need it."""
