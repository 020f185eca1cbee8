"""A source of a local job: carries messages between coordinator and readers, in one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flinkray.core.clock import Clock
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sources.coordinator import NO_MORE_SPLITS, SourceCoordinator
from flinkray.streaming.sources.source import Source
from flinkray.streaming.task.task import StreamTask


class LocalSource:
    """Connects the coordinator of a source with the source's readers, in a local job."""

    def __init__(self, source: Source[Any], tasks: Sequence[StreamTask], clock: Clock) -> None:
        self._source = source
        self.tasks = list(tasks)
        self._clock = clock
        self.name = f"enumerator of {self.tasks[0].name}"
        self._requests = [0] * len(self.tasks)
        self._told = [0] * len(self.tasks)

    def start(self) -> None:
        self._coordinator = SourceCoordinator(self._clock)
        self._coordinator.start(self._source, len(self.tasks))

    def serve(self) -> bool:
        """Pass on requests of readers and events for them. Look for new splits when it is time.
        Returns whether a reader got an event."""
        for subtask in range(len(self.tasks)):
            context = self._operator(subtask).reader_context
            if context.split_requested:
                context.split_requested = False
                self._requests[subtask] += 1
            told = self._told[subtask]
            self._coordinator.heard(subtask, 0, self._requests[subtask], position=told)
        discovery = self._coordinator.next_discovery_time()
        if discovery is not None and discovery <= self._clock.time():
            self._coordinator.discover()
        any_told = False
        for subtask in range(len(self.tasks)):
            operator = self._operator(subtask)
            for event in self._coordinator.events(subtask, 0, self._told[subtask]) or ():
                any_told = True
                self._told[subtask] += 1
                if event is NO_MORE_SPLITS:
                    operator.no_more_splits()
                else:
                    operator.add_splits([event])
        return any_told

    def _operator(self, subtask: int) -> SourceOperator:
        head = self.tasks[subtask].head
        assert isinstance(head, SourceOperator)
        return head

    def wake_up_times(self) -> Iterator[float | None]:
        """Yield the time in seconds at which each reader, and the enumerator, next has work.
        None: that time is unknown."""
        waiting = [task for task in self.tasks if not task.has_ended]
        for task in waiting:
            assert isinstance(task.head, SourceOperator)
            if not task.head.paused and not task.turn.is_waiting:  # others are woken
                yield task.head.reader.next_poll_time()
        discovery = self._coordinator.next_discovery_time()
        if waiting and discovery is not None:
            yield discovery

    def close(self) -> None:
        coordinator = getattr(self, "_coordinator", None)
        if coordinator is not None:
            coordinator.close()
