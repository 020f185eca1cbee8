"""Runs a source's enumerator beside its readers, in the process and thread of a local job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flinkray.core.clock import Clock
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sources.source import EnumeratorContext, Source, SourceReader
from flinkray.streaming.task.task import StreamTask


class SourceCoordinator(EnumeratorContext[Any]):
    """Carries requests from readers to the enumerator, and splits back."""

    def __init__(
        self, operator_id: str, source: Source[Any], tasks: Sequence[StreamTask], clock: Clock
    ) -> None:
        self.operator_id = operator_id
        self._source = source
        self._tasks = list(tasks)
        self._clock = clock
        self.name = f"enumerator of {self._tasks[0].name}"
        self._told = [False] * len(self._tasks)

    def _operator(self, subtask: int) -> SourceOperator:
        head = self._tasks[subtask].head
        assert isinstance(head, SourceOperator)
        return head

    def _reader(self, subtask: int) -> SourceReader[Any]:
        return self._operator(subtask).reader

    def start(self, checkpoint: Any = None) -> None:
        """Begin, or go on from what :meth:`snapshot` gave; readers bring their own splits."""
        if checkpoint is None:
            self._enumerator = self._source.create_enumerator(self, self._clock)
        else:
            (state,) = checkpoint
            self._enumerator = self._source.restore_enumerator(self, self._clock, state)
        self._enumerator.start()

    def snapshot(self, checkpoint_id: int) -> Any:
        """Taken before any reader's, so that no split is in both or in neither."""
        return (self._enumerator.snapshot_state(checkpoint_id),)

    def current_parallelism(self) -> int:
        return len(self._tasks)

    def assign_split(self, split: Any, subtask: int) -> None:
        self._reader(subtask).add_splits([split])
        self._told[subtask] = True

    def signal_no_more_splits(self, subtask: int) -> None:
        self._reader(subtask).notify_no_more_splits()
        self._told[subtask] = True

    def serve(self) -> bool:
        """Answer what readers asked for, and look for new splits when it is time.  Whether a
        reader was told anything."""
        self._told = [False] * len(self._tasks)
        for subtask in range(len(self._tasks)):
            context = self._operator(subtask).reader_context
            if context.split_requested:
                context.split_requested = False
                self._enumerator.handle_split_request(subtask)
        discovery = self._enumerator.next_discovery_time()
        if discovery is not None and discovery <= self._clock.time():
            self._enumerator.discover()
        return any(self._told)

    def wake_up_times(self) -> Iterator[float | None]:
        """When readers and enumerator have something to do; None: nobody knows."""
        waiting = [task for task in self._tasks if not task.finished]
        for task in waiting:
            assert isinstance(task.head, SourceOperator)
            if not task.head.paused:  # then it is woken by its own timers
                yield task.head.reader.next_poll_time()
        discovery = self._enumerator.next_discovery_time()
        if waiting and discovery is not None:
            yield discovery

    def close(self) -> None:
        enumerator = getattr(self, "_enumerator", None)
        if enumerator is not None:
            enumerator.close()
