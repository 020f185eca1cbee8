"""The end of a stream whose records go to the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.operators.task_services import ResultsReceiver, TaskServices
from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.simple import CollectOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


class Kept:
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.has_begun = False
        self.restored: list[tuple[int, bytes]] = []
        self.completed_id = 0

    def put(self, values: Sequence[Any]) -> None:
        self.batches.append(list(values))

    def begin(self) -> None:
        self.has_begun = True

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        return [(checkpoint_id, b"piece")]

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        assert not self.has_begun
        self.restored = list(pieces)

    def completed(self, checkpoint_id: int) -> None:
        self.completed_id = checkpoint_id


def harness(restore: OperatorState | None = None) -> tuple[OperatorHarness, Kept]:
    kept = Kept()

    class Services(TaskServices):
        def results(self) -> ResultsReceiver:
            return kept

    return OperatorHarness(CollectOperator(), restore=restore, services=Services()), kept


def test_collect_operator_collects_values_in_batches_and_columns_as_rows() -> None:
    h, kept = harness()
    h.process(1, 2, at=[5, 6])
    h.process((3,))
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert kept.batches == [[1, 2], [(3,)], [Row(x=1), Row(x=2)]]


def test_collected_results_that_the_client_has_not_read_are_restored() -> None:
    h, before = harness()
    state = h.snapshot(7)
    h.operator.notify_checkpoint_complete(7)
    assert (before.has_begun, before.restored, before.completed_id) == (True, [], 7)
    _, kept = harness(state)
    assert (kept.has_begun, kept.restored) == (True, [(7, b"piece")])


def test_collect_sink_emits_neither_watermarks_nor_status_nor_results() -> None:
    h, kept = harness()
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    assert kept.batches == []
