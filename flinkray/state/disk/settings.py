"""Settings for state on a local disk."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.state.disk.timers import MOST_IN_MEMORY


@dataclass(frozen=True)
class DiskSettings:
    """Settings of all disk backends of a process."""

    directories: tuple[str, ...] = ()
    """Directories for folders of state, in turn; empty: the machine's temporary directory."""
    memory_bytes: int = 128 << 20
    """Memory of RocksDB in the process, in bytes: read blocks and tables being filled."""
    write_buffer_ratio: float = 0.5
    """Largest share of ``memory_bytes`` for tables that are being filled."""
    cache_bytes: int = 64 << 20
    """Memory for decoded values in each subtask of an operator, in bytes; approximate."""
    timers_in_memory: int = MOST_IN_MEMORY
    """Largest number of timers in memory, for each queue."""
