"""Batch mode: reads the whole second input of an operator before its first input.

Used for broadcast process functions (Flink's BatchCoBroadcastWithNonKeyedOperator), look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import (
    OperatorStateCapture,
    Receiver,
    StreamOperator,
)
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block, Columns, Records
from flinkray.streaming.records.kept_batches import KeptBatches
from flinkray.streaming.records.key_sorter import DEFAULT_MEMORY
from flinkray.streaming.time.turn import Portion


class BroadcastFirstOperator(StreamOperator):
    """Holds the first input of another operator back until its second input has ended.

    Args:
        memory: bytes of records that are kept in memory; further records go to a file.
    """

    def __init__(self, operator: StreamOperator, memory: int = DEFAULT_MEMORY) -> None:
        self.operator = operator
        self._memory = memory

    @property
    def selectors(self) -> Sequence[Any]:
        return self.operator.selectors

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        self.operator.setup(replace(context, is_head=False), output)
        self._portion = Portion(context.clock, context.turn)

    def open(self) -> None:
        self.kept = KeptBatches(self._memory)
        self._is_waiting = True
        self._first_has_ended = False
        self._first, self._second = self.operator.inputs()
        self.operator.open()

    def close(self) -> None:
        try:
            self.operator.close()
        finally:
            self.kept.close()

    def inputs(self) -> Sequence[Receiver]:
        return _FirstPort(self), _BroadcastPort(self)

    def take_in(self, batch: Records) -> None:
        """Keep records of the first input, or pass them on once the second input has ended."""
        if self._is_waiting:
            self.kept.add(batch)
        elif isinstance(batch, Block):
            self._first.process_block(batch)
        else:
            self._first.process_columns(batch)

    def end_first(self) -> None:
        """Note that the first input has ended."""
        self._first_has_ended = True
        if not self._is_waiting:
            self._first.process_watermark(MAX_TIMESTAMP)

    def broadcast(self, block: Block) -> None:
        """Pass records of the second input on."""
        self._second.process_block(block)

    def end_broadcast(self) -> None:
        """Note that the second input has ended: pass on the records that were held back."""
        self._is_waiting = False
        self._second.process_watermark(MAX_TIMESTAMP)
        for batch in self.kept.take():
            for begin, end in self._portion.of(len(batch)):
                self.take_in(batch.part(begin, end))
                self.context.turn.pause()
        if self._first_has_ended:
            self._first.process_watermark(MAX_TIMESTAMP)

    def finish(self) -> None:
        self.operator.finish()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        raise StreamError(
            "batch mode takes no checkpoints: what fails is read again from the start"
        )


class _Port:
    def __init__(self, operator: BroadcastFirstOperator) -> None:
        self._operator = operator

    def process_status(self, idle: bool) -> None:
        """Ignore the status: in batch mode no watermark could be held back by an idle input."""


class _FirstPort(_Port):
    def process_block(self, block: Block) -> None:
        self._operator.take_in(block)

    def process_columns(self, columns: Columns) -> None:
        self._operator.take_in(columns)

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._operator.end_first()


class _BroadcastPort(_Port):
    def process_block(self, block: Block) -> None:
        self._operator.broadcast(block)

    def process_columns(self, columns: Columns) -> None:
        self._operator.broadcast(columns.to_block())

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._operator.end_broadcast()
