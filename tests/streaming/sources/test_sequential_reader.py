"""The reader that goes through its splits one after the other."""

from __future__ import annotations

from typing import Any

from flinkray.datastream.connectors import SequentialReader
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, ReaderContext
from flinkray.testing.manual_clock import ManualClock


def test_sequential_reader_requests_the_next_split_after_each_split() -> None:
    class Words(SequentialReader[Any]):
        def open_split(self, split: Any) -> None:
            self.word = list(split)

        def read(self, max_records: int) -> Any:
            if not self.word:
                return END_OF_INPUT
            letters, self.word = self.word[:max_records], self.word[max_records:]
            return Block(letters)

        def remaining(self) -> Any:
            return "".join(self.word)

    context = ReaderContext(0, 1, ManualClock())
    reader = Words(context)
    reader.start()
    assert context.split_requested
    assert reader.poll(2) is NOTHING_NOW
    reader.add_splits(["abc"])
    polled = reader.poll(2)
    assert isinstance(polled, Block | Columns)
    assert reader.snapshot_state(1) == ["c"]
    assert reader.poll(2).values == ["c"]  # type: ignore[union-attr]
    context.split_requested = False
    assert reader.poll(2) is NOTHING_NOW
    assert context.split_requested
    reader.notify_no_more_splits()
    assert reader.poll(2) is END_OF_INPUT
