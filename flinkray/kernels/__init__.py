"""Inner loops over rows and records: each has Python or NumPy code, and a compiled kernel.

The Python or NumPy code defines the results. The compiled kernel gives the same results in less
time, and releases the interpreter's lock while it works on arrays. Callers do not choose: they call
a function of this package, and :mod:`flinkray.kernels.compiled` decides when it is imported.
"""

__all__ = [
    "aggregates",
    "arrow_columns",
    "compiled",
    "dividing",
    "joins",
    "keys",
    "panes",
    "rows",
    "snapshots",
]
