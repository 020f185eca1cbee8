"""Functions of streams that fail when a test wants it."""

from __future__ import annotations

from flinkray.datastream import MapFunction, RuntimeContext


class FailsOnce(MapFunction[int, int]):
    """Fails in the first attempt, at the first record after *records* records."""

    def __init__(self, records: int) -> None:
        self._records = records

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_first = runtime_context.get_attempt_number() == 0
        self._seen = 0

    def map(self, value: int) -> int:
        self._seen += 1
        if self._is_first and self._seen > self._records:
            raise ValueError("fails once")
        return value
