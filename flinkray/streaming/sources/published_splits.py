"""Splits that become known while the stream runs, when a Spark stage publishes them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from flinkray.core.clock import Clock
from flinkray.streaming.sources.source import EnumeratorContext, SplitEnumerator

PublishedSplitT = TypeVar("PublishedSplitT", bound=tuple[Any, ...])
"""A tuple whose first items define the order of the splits."""

LOOK_INTERVAL = 0.2
"""Seconds between two looks for splits, while a reader waits for one."""


class PublishedSplitsEnumerator(SplitEnumerator[PublishedSplitT]):
    """Hands out splits in order, each when it is published.
    Readers that ask earlier wait, and are served in the order of their requests."""

    def __init__(self, context: EnumeratorContext[PublishedSplitT], clock: Clock) -> None:
        super().__init__(context)
        self._clock = clock
        self._remaining: list[PublishedSplitT] = []
        """Splits that were found or given back and not handed out, in order. Part of the state."""
        self._waiting: dict[int, None] = {}
        """Waiting subtasks, in the order of their requests."""
        self._due = 0.0

    @abstractmethod
    def find_splits(self) -> list[PublishedSplitT] | None:
        """Return the next splits in order. Empty: not published yet. None: no split follows."""

    def handle_split_request(self, subtask: int) -> None:
        self._waiting[subtask] = None
        self._serve()

    def next_discovery_time(self) -> float | None:
        return self._due if self._waiting else None

    def discover(self) -> None:
        self._serve()

    def add_splits_back(self, splits: Sequence[PublishedSplitT], subtask: int) -> None:
        self._remaining = sorted([*splits, *self._remaining])
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            found = self._remaining or self.find_splits()
            if found is None:
                self.context.signal_no_more_splits(self._next_waiting())
            elif found:
                self._remaining = found
                self.context.assign_split(self._remaining.pop(0), self._next_waiting())
            else:
                self._due = self._clock.time() + LOOK_INTERVAL
                return

    def _next_waiting(self) -> int:
        subtask = next(iter(self._waiting))
        del self._waiting[subtask]
        return subtask
