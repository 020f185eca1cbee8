"""What a process holds in memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import TracebackType

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(process: int | None = None) -> int:
    """Bytes of a process, by default this one, shared memory that it has touched included."""
    return int(Path(f"/proc/{process or 'self'}/statm").read_text().split()[1]) * PAGE


class Watch:
    """The most that memory grew by while it was looked at."""

    def __enter__(self) -> Watch:
        gc.collect()
        self._before = self._most = resident()
        return self

    def look(self) -> None:
        self._most = max(self._most, resident())

    @property
    def growth(self) -> int:
        return self._most - self._before

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.look()
