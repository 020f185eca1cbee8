"""What a task process imports while it waits for a job."""

from __future__ import annotations

import importlib

import pyarrow as pa

IMPORT_AHEAD_AFTER = 0.5
"""Seconds after its start.  A job that waits for the process comes at once, and goes first."""
USER_API = "flinkray.datastream"
"""What user code of a stream job is made of.  By name, since nothing here depends on it."""


def import_ahead() -> None:
    """Import what most jobs need and the process itself does not, pandas if it is installed.

    PyArrow imports pandas with the first array that it makes of Python's or NumPy's values or turns
    into them, as nearly every task does that works on columns.
    """
    importlib.import_module(USER_API)
    pa.array([0])
