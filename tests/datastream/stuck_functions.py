"""Functions that stop at a certain record, in user code, on their first attempt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NoReturn

from flinkray.datastream import MapFunction
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    FixedSplitsEnumerator,
    SequentialReader,
    Source,
)


def run_on_without_end() -> NoReturn:
    """User code that reacts to nothing but an interrupt."""
    while True:
        time.sleep(0.001)


class StuckAt(MapFunction[Any, Any]):
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
            run_on_without_end()
        return value


class FailingAt(MapFunction[Any, Any]):
    """Raises at the record, on its first attempts."""

    def __init__(self, record: Any, attempts: int = 1) -> None:
        self.record = record
        self.attempts = attempts

    def open(self, runtime_context: Any) -> None:
        self.fails = runtime_context.get_attempt_number() < self.attempts

    def map(self, value: Any) -> Any:
        if self.fails and value == self.record:
            raise ValueError(f"record {value}")
        return value


class OneAtATime(Source[Any]):
    """Numbers from 0, one in each batch; with a *gate*, the last comes when that file is there."""

    def __init__(self, count: int, gate: Path | None = None) -> None:
        self.count = count
        self.gate = None if gate is None else str(gate)

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: Any, clock: Any) -> Any:
        return FixedSplitsEnumerator(context, [0])

    def create_reader(self, context: Any) -> Any:
        return OneAtATimeReader(context, self.count, self.gate)


class OneAtATimeReader(SequentialReader[int]):
    def __init__(self, context: Any, count: int, gate: str | None) -> None:
        super().__init__(context)
        self.count = count
        self.gate = gate
        self.next = 0

    def open_split(self, split: int) -> None:
        self.next = split

    def read(self, max_records: int) -> Any:
        if self.next == self.count:
            return END_OF_INPUT
        if self.next == self.count - 1 and self.gate is not None and not Path(self.gate).exists():
            return NOTHING_NOW
        self.next += 1
        return Block([self.next - 1])

    def remaining(self) -> int:
        return self.next


class CountingTo(MapFunction[Any, Any]):
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
