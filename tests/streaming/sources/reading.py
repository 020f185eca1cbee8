"""Sources read by themselves, and by programs, for their tests."""

from __future__ import annotations

from typing import Any

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.streaming.sources.source import END_OF_INPUT, OfSplit, ReaderContext
from flinkray.testing.manual_clock import ManualClock


def read(source: Any, parallelism: int = 1) -> list[Any]:
    """All records, by a program."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    return list(env.from_source(source).execute_and_collect())


def reader_of(source: Any, *splits: Any) -> Any:
    """A reader that is to read these splits and no others."""
    reader = source.create_reader(ReaderContext(0, 1, ManualClock()))
    reader.add_splits(splits)
    reader.notify_no_more_splits()
    return reader


def batch_of(polled: Any) -> Any:
    """What a reader has given, whichever split it is of."""
    return polled.batch if isinstance(polled, OfSplit) else polled


def rest_of(reader: Any, max_records: int = 10) -> list[Any]:
    """What a reader still reads."""
    values: list[Any] = []
    while (polled := reader.poll(max_records)) is not END_OF_INPUT:
        values += batch_of(polled).values
    return values


class Readers:
    """An enumerator context that takes down who got which splits."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.assigned: dict[int, list[Any]] = {}
        self.done: list[int] = []

    def current_parallelism(self) -> int:
        return self.parallelism

    def reading_subtasks(self) -> list[int]:
        return [subtask for subtask in range(self.parallelism) if subtask not in self.done]

    def assign_split(self, split: Any, subtask: int) -> None:
        self.assigned.setdefault(subtask, []).append(split)

    def signal_no_more_splits(self, subtask: int) -> None:
        self.done.append(subtask)
