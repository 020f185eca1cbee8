"""A base class of readers that read their splits one after the other, as most sources do."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    NoRecords,
    OfSplit,
    Polled,
    ReaderContext,
    SourceReader,
    SplitT,
)


class SequentialReader(SourceReader[SplitT]):
    """Reads one split to its end, then requests the next one."""

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._waiting: deque[SplitT] = deque()
        self._current: SplitT | None = None
        self._no_more = False

    def start(self) -> None:
        if not self._waiting:
            self.context.send_split_request()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._waiting.extend(splits)
        self.context.unread_splits = len(self._waiting)

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, max_records: int) -> Polled:
        while True:
            if self._current is None:
                if not self._waiting:
                    return END_OF_INPUT if self._no_more else NOTHING_NOW
                self._current = self._waiting.popleft()
                self.context.unread_splits = len(self._waiting)
                self.context.begin_split()
                self.open_split(self._current)
            split_id = self.split_id(self._current)
            polled = self.read(max_records)
            if polled is not END_OF_INPUT:
                if split_id is None or isinstance(polled, (NoRecords, OfSplit)):
                    return polled
                return OfSplit(split_id, polled)
            if split_id is not None:
                self.context.finish_split(split_id)
            self._current = None
            if not self._waiting and not self._no_more:
                self.context.send_split_request()
                return NOTHING_NOW

    def next_poll_time(self) -> float | None:
        return math.inf if self._current is None and not self._waiting else None

    @abstractmethod
    def open_split(self, split: SplitT) -> None:
        """Begin to read this split, at its position."""

    @abstractmethod
    def read(self, max_records: int) -> Polled:
        """Return the next batch of the split, or END_OF_INPUT at its end."""

    @abstractmethod
    def remaining(self) -> SplitT:
        """Return the current split with the position from which to continue."""

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        current = [] if self._current is None else [self.remaining()]
        return [*current, *self._waiting]
