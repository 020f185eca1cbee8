"""Sinks without commits: print, discard, callbacks, sink functions, results for the client."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from flinkray.state import ListState, ListStateDescriptor
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.operators.operator import (
    FunctionOperator,
    LastOperator,
    OperatorContext,
    OperatorStateCapture,
    Output,
)
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation, stringifier
from flinkray.streaming.sinks.sink import Sink, SinkWriter, T, WriterContext


class PrintOperator(LastOperator):
    """Writes each value as a line to standard output, as Flink does. If there are several subtasks,
    their numbers precede the values: ``name:2> value``. On a cluster the lines may be sent to the
    client instead."""

    def __init__(
        self, identifier: str | None = None, type_info: TypeInformation | None = None
    ) -> None:
        self._identifier = identifier
        self._type_info = type_info

    def open(self) -> None:
        self._write = self.context.services.write_lines or _write_to_stdout
        prefix = self._identifier or ""
        if self.context.parallelism > 1:
            prefix += f"{':' if prefix else ''}{self.context.subtask_index + 1}"
        self._prefix = f"{prefix}> " if prefix else ""
        self._text = stringifier(self._type_info)

    def process_block(self, block: Block) -> None:
        text, prefix = self._text, self._prefix
        lines = [f"{prefix}{text(value)}\n" for value in self.read(block)]
        self._write("".join(lines))


def _write_to_stdout(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


class SinkFunctionOperator(LastOperator, FunctionOperator):
    """Calls a SinkFunction, or a plain function, for each value."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.shared = bool(getattr(function, "shared", False))

    def open(self) -> None:
        super().open()
        self._invoke = self.method("invoke")

    def process_block(self, block: Block) -> None:
        invoke = self._invoke
        for value in self.read(block):
            invoke(value)


class DiscardWriter(SinkWriter[Any]):
    """A writer that discards all records."""

    def write(self, block: Block) -> None:
        return None

    def write_columns(self, columns: Columns) -> None:
        return None


class DiscardingSink(Sink[object]):
    """A sink that discards all records.
    For measurements, and for programs with side effects upstream."""

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return DiscardWriter()


class CallbackWriter(SinkWriter[Any]):
    """A writer that passes values, or whole batches, to a function."""

    def __init__(
        self,
        on_value: Callable[[Any], None] | None,
        on_batch: Callable[[Any], None] | None,
    ) -> None:
        self._on_value = on_value
        self._on_batch = on_batch

    def write(self, block: Block) -> None:
        on_value = self._on_value
        if on_value is not None:
            records = iter(block.values)
            self.reading = block, records
            for value in records:
                on_value(value)
        if self._on_batch is not None:
            self._on_batch(list(block.values))

    def write_columns(self, columns: Columns) -> None:
        if self._on_batch is not None:
            self._on_batch(columns.batch)
        if self._on_value is not None:
            self.write(columns.to_block())


class CallbackSink(Sink[T]):
    """A sink that calls a function in the client's process, one call at a time.

    Args:
        on_value: called with each value.
        on_batch: called with each batch: a list of values, or an Arrow record batch.
    """

    shared = True

    def __init__(
        self,
        on_value: Callable[[T], object] | None = None,
        on_batch: Callable[[Any], object] | None = None,
    ) -> None:
        if (on_value is None) == (on_batch is None):
            raise ValueError("give either on_value or on_batch")
        refuse_coroutines(on_value or on_batch)
        self._on_value = None if on_value is None else self._one_at_a_time(on_value)
        self._on_batch = None if on_batch is None else self._one_at_a_time(on_batch)
        self._lock = threading.RLock()

    def _one_at_a_time(self, function: Callable[[Any], object]) -> Callable[[Any], None]:
        def call(value: Any) -> None:
            with self._lock:
                function(value)

        return call

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return CallbackWriter(self._on_value, self._on_batch)


class CollectSink(Sink[T]):
    """A sink that keeps results in the client's process until they are taken."""

    shared = True

    def __init__(self) -> None:
        self._results: deque[Any] = deque()
        self._lock = threading.Lock()

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return CallbackWriter(None, self._take)

    def _take(self, batch: Any) -> None:
        values = batch if isinstance(batch, list) else Columns(batch).to_block().values
        with self._lock:
            self._results.extend(values)

    def __len__(self) -> int:
        return len(self._results)

    def pop(self) -> Any:
        """Remove and return the next result. Raises IndexError if there is none at the moment."""
        return self._results.popleft()

    def take_all(self) -> list[Any]:
        """Remove and return all present results."""
        with self._lock:
            results = list(self._results)
            self._results.clear()
            return results


_PIECES: ListStateDescriptor[tuple[int, bytes]] = ListStateDescriptor("collected-results")


class CollectOperator(LastOperator):
    """Passes records to the buffer from which the client reads results.
    Results that are repeated after a failure are not shown twice: with checkpoints, the client
    shows results when a checkpoint after them is complete, or when the job has ended."""

    _pieces: ListState[tuple[int, bytes]]

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._receiver = context.services.results()

    def open(self) -> None:
        super().open()
        self._pieces = self.operator_state.list_state(_PIECES)
        restored = list(self._pieces.get())
        if restored:
            self._receiver.restore(restored)
        self._receiver.begin()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self._pieces.update(self._receiver.capture(checkpoint_id))
        return super().capture(checkpoint_id, since)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._receiver.completed(checkpoint_id)

    def process_block(self, block: Block) -> None:
        self._receiver.put(block.values)
