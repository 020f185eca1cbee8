"""The end of a stream whose records go to the program's client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flinkray.state import ListState, ListStateDescriptor
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Block


class ResultsReceiver(Protocol):
    """Where they are kept until the client takes them."""

    def begin(self) -> None:
        """There are going to be results."""

    def put(self, values: Sequence[Any]) -> None:
        """Add results; from the task's thread."""

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        """What the client has not read yet of what was put so far, in numbered pieces."""

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """What an earlier attempt had captured; before all else."""

    def completed(self, checkpoint_id: int) -> None:
        """What was put before that checkpoint's capture will not be put again."""


_PIECES: ListStateDescriptor[tuple[int, bytes]] = ListStateDescriptor("collected-results")


class CollectOperator(StreamOperator):
    """Puts records where the client can read them; whoever runs the task says where.

    What is put again after a failure is not shown twice: the client shows what comes before the
    capture of a complete checkpoint, and goes back to that when the task does.
    """

    receiver: ResultsReceiver
    _pieces: ListState[tuple[int, bytes]]

    def open(self) -> None:
        super().open()
        self._pieces = self.operator_state.list_state(_PIECES)
        restored = list(self._pieces.get())
        if restored:
            self.receiver.restore(restored)
        self.receiver.begin()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self._pieces.update(self.receiver.capture(checkpoint_id))
        return super().capture(checkpoint_id, since)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.receiver.completed(checkpoint_id)

    def process_block(self, block: Block) -> None:
        self.receiver.put(block.values)

    def process_watermark(self, timestamp: int) -> None:
        """Nothing follows."""

    def process_status(self, idle: bool) -> None:
        """Nothing follows."""
