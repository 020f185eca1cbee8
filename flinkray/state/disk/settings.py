"""What a user says of state on the disk."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.state.disk.timers import MOST_IN_MEMORY


@dataclass(frozen=True)
class DiskSettings:
    """Of all backends of a process."""

    directories: tuple[str, ...] = ()
    """Where folders of state are made, in turns; none: in the temporary one of the machine."""
    memory_bytes: int = 128 << 20
    """Of RocksDB, for blocks that were read and tables that are being filled, in the process."""
    write_buffer_ratio: float = 0.5
    """How much of that is for the latter at most."""
    cache_bytes: int = 64 << 20
    """Of decoded values, of each operator's subtask; roughly."""
    timers_in_memory: int = MOST_IN_MEMORY
    """Of each queue."""
