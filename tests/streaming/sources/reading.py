"""Sources read by themselves, and by programs, for their tests."""

from __future__ import annotations

from typing import Any

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, OfSplit, ReaderContext
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
        if polled is not NOTHING_NOW:
            values += batch_of(polled).values
    return values


def batches_of(source: Any) -> list[Block | Columns]:
    """All batches with records, by one reader, of the splits that the enumerator hands out."""
    readers = Readers(1)
    enumerator = source.create_enumerator(readers, ManualClock())
    enumerator.start()
    while not readers.done:
        enumerator.handle_split_request(0)
    return batches_by(reader_of(source, *readers.assigned.get(0, ())))


def batches_by(reader: Any) -> list[Block | Columns]:
    """All batches with records that a reader still reads."""
    found = []
    while (polled := reader.poll(1000)) is not END_OF_INPUT:
        if polled is not NOTHING_NOW:
            batch = batch_of(polled)
            found += [batch] if len(batch) else []
    return found


def values_of(batches: list[Block | Columns]) -> list[Any]:
    """The records of batches; rows as dictionaries."""
    values: list[Any] = []
    for batch in batches:
        block = batch.to_block() if isinstance(batch, Columns) else batch
        values += [v.as_dict() if isinstance(v, Row) else v for v in block.values]
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
