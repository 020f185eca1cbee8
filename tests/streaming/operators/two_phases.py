"""A sink of two phases, as a user writes it, whose commits can be looked at and made to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flinkray.datastream.connectors import (
    CommitRequest,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    StatefulSinkWriter,
    WriterContext,
)
from flinkray.streaming.records.elements import Block


class Shelf(Sink[Any]):
    """What a writer has got between two checkpoints is a box.

    Args:
        on_commit: called with each request, before it is committed.
    """

    shared = True

    def __init__(self, on_commit: Callable[[CommitRequest[Any]], None] | None = None) -> None:
        self.commits: list[Any] = []
        self.contexts: list[WriterContext | CommitterContext] = []
        self.closed: list[str] = []
        self.on_commit = on_commit

    def create_writer(self, context: WriterContext) -> ShelfWriter:
        self.contexts.append(context)
        return ShelfWriter(self, 0)

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter[Any]:
        self.contexts.append(context)
        return ShelfWriter(self, sum(states))

    def create_committer(self, context: CommitterContext) -> Committer[Any]:
        self.contexts.append(context)
        return ShelfCommitter(self)


class ShelfWriter(StatefulSinkWriter[Any, int]):
    def __init__(self, sink: Shelf, seen: int) -> None:
        self._sink = sink
        self._seen = seen
        self._values: list[Any] = []

    def write(self, block: Block) -> None:
        self._seen += len(block)
        self._values.extend(block.values)

    def prepare_commit(self, end_of_input: bool) -> list[Any]:
        box, self._values = (tuple(self._values), end_of_input), []
        return [box] if box[0] else []

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return [self._seen]

    def close(self) -> None:
        self._sink.closed.append("writer")


class ShelfCommitter(Committer[Any]):
    def __init__(self, sink: Shelf) -> None:
        self._sink = sink

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        for request in requests:
            if self._sink.on_commit is not None:
                self._sink.on_commit(request)
            if request.reason is None:
                self._sink.commits.append(request.committable)

    def close(self) -> None:
        self._sink.closed.append("committer")
