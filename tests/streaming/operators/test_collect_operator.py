"""The end of a stream whose records go to the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.streaming.records.row import Row
from flinkray.streaming.sinks.collect import CollectOperator
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns


class Kept:
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def put(self, values: Sequence[Any]) -> None:
        self.batches.append(list(values))


def harness() -> tuple[OperatorHarness, Kept]:
    operator, kept = CollectOperator(), Kept()
    operator.receiver = kept
    return OperatorHarness(operator), kept


def test_values_are_put_batch_by_batch_columns_as_rows() -> None:
    h, kept = harness()
    h.process(1, 2, at=[5, 6])
    h.process((3,))
    h.process_columns(columns([7, 8], x=[1, 2]))
    assert kept.batches == [[1, 2], [(3,)], [Row(x=1), Row(x=2)]]


def test_nothing_follows_neither_time_nor_the_end() -> None:
    h, kept = harness()
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    assert kept.batches == []
