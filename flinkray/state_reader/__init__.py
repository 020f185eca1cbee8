"""Reads and writes the state in checkpoints and savepoints, without running their job.

>>> savepoint = SavepointReader("/savepoints/savepoint-1a2b3c-0d4e5f607182")
>>> savepoint.keyed_state("tally", "totals")  # an Arrow table of keys and values
"""

from flinkray.state_reader.reader import (
    KeyedEntry,
    SavepointReader,
    StateNotFoundError,
    StoredTimer,
)
from flinkray.state_reader.writer import BootstrapError, SavepointWriter

__all__ = [
    "BootstrapError",
    "KeyedEntry",
    "SavepointReader",
    "SavepointWriter",
    "StateNotFoundError",
    "StoredTimer",
]
