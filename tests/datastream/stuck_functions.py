"""Functions that stop at a certain record, in user code, on their first attempt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flinkray.datastream import MapFunction


class StuckAt(MapFunction):
    """Leaves a file when it has come to the record, and then runs on without end: it reacts to
    nothing but an interrupt.  Later attempts pass the record on."""

    def __init__(self, record: int, marker: Path) -> None:
        self.record = record
        self.marker = str(marker)

    def open(self, runtime_context: Any) -> None:
        self.is_first = runtime_context.get_attempt_number() == 0

    def map(self, value: Any) -> Any:
        if self.is_first and value == self.record:
            Path(self.marker).touch()
            while True:
                time.sleep(0.001)
        return value


class FailingAt(MapFunction):
    """Raises at the record, on its first attempts."""

    def __init__(self, record: int, attempts: int = 1) -> None:
        self.record = record
        self.attempts = attempts

    def open(self, runtime_context: Any) -> None:
        self.fails = runtime_context.get_attempt_number() < self.attempts

    def map(self, value: Any) -> Any:
        if self.fails and value == self.record:
            raise ValueError(f"record {value}")
        return value


class CountingTo(MapFunction):
    """Writes into a file how many records have passed."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def open(self, runtime_context: Any) -> None:
        self.count = 0
        self.out = open(self.file, "r+b")  # noqa: SIM115 - closed by close

    def map(self, value: Any) -> Any:
        self.count += 1
        self.out.seek(0)
        self.out.write(self.count.to_bytes(8, "big"))
        self.out.flush()
        return value

    def close(self) -> None:
        self.out.close()
