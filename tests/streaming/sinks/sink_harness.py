"""One subtask of a sink by itself: its writer with its committer behind it."""

from __future__ import annotations

from typing import Any, NamedTuple

from flinkray.datastream.connectors import Sink
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.sinks.sink_operators import CommitterOperator, SinkWriterOperator
from flinkray.testing.operator_harness import OperatorHarness


class SinkState(NamedTuple):
    """What a checkpoint holds of it."""

    writer: OperatorState
    committer: OperatorState
    checkpoint_id: int


class SinkHarness(OperatorHarness):
    """The clocks of the two are not the same."""

    def __init__(self, sink: Sink[Any], state: SinkState | None = None, **context: Any) -> None:
        if state is not None:
            context["restored_checkpoint_id"] = state.checkpoint_id
        self._latest = 0 if state is None else state.checkpoint_id
        self.committer = OperatorHarness(
            CommitterOperator(sink), restore=None if state is None else state.committer, **context
        )
        super().__init__(
            SinkWriterOperator(sink), restore=None if state is None else state.writer, **context
        )

    def checkpoint(self, *, is_savepoint: bool = False) -> SinkState:
        """One is taken, and not complete yet."""
        self._latest += 1
        barrier = Barrier(self._latest, 0, is_savepoint)
        self.operator.prepare_snapshot_pre_barrier(barrier)
        self._hand_on()
        self.committer.operator.prepare_snapshot_pre_barrier(barrier)
        writer, committer = self.snapshot(self._latest), self.committer.snapshot(self._latest)
        return SinkState(writer, committer, self._latest)

    def complete(self, checkpoint_id: int | None = None) -> None:
        """The latest one is, or that one."""
        latest = self._latest if checkpoint_id is None else checkpoint_id
        self.committer.operator.notify_checkpoint_complete(latest)

    def finish(self) -> None:
        """The input ends, and the checkpoint after that is complete."""
        super().finish()
        self._hand_on()
        self.committer.finish()
        self.checkpoint()
        self.complete()

    def _hand_on(self) -> None:
        messages = self.values()
        if messages:
            self.committer.process(*messages)

    def close(self) -> None:
        super().close()
        self.committer.close()
