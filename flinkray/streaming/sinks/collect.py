"""The operator at the end of a stream whose records go to the program's client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flinkray.state import ListState, ListStateDescriptor
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Block


class ResultsReceiver(Protocol):
    """Interface of the buffer that keeps collected results until the client takes them."""

    def begin(self) -> None:
        """Announce that results will follow."""

    def put(self, values: Sequence[Any]) -> None:
        """Add results. Called by the task's thread."""

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        """Return the results that the client has not read yet, in numbered pieces."""

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Restore the captured results of an earlier attempt. Called before all other methods."""

    def completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: results captured in it are never put in again."""


_PIECES: ListStateDescriptor[tuple[int, bytes]] = ListStateDescriptor("collected-results")


class CollectOperator(StreamOperator):
    """Puts records where the client can read them. The runner of the task sets :attr:`receiver`.

    Results that are repeated after a failure are not shown twice: with checkpoints, the client
    shows results when a checkpoint after them is complete, or when the job has ended.
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
        """Do nothing: no operator follows."""

    def process_status(self, idle: bool) -> None:
        """Do nothing: no operator follows."""
