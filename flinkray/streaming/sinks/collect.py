"""The end of a stream whose records go to the program's client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Block


class ResultsReceiver(Protocol):
    """Where they are kept until the client takes them."""

    def put(self, values: Sequence[Any]) -> None:
        """Add results; from the task's thread."""


class CollectOperator(StreamOperator):
    """Puts records where the client can read them; whoever runs the task says where."""

    receiver: ResultsReceiver

    def process_block(self, block: Block) -> None:
        self.receiver.put(block.values)

    def process_watermark(self, timestamp: int) -> None:
        """Nothing follows."""

    def process_status(self, idle: bool) -> None:
        """Nothing follows."""
