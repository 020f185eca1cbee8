"""Operators on Arrow columns that never make a Python object per record."""
