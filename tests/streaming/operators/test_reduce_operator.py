"""Rolling reduce, and that of batch mode."""

from __future__ import annotations

from flinkray.streaming.keying import Keys
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    ReduceOperator,
)
from flinkray.testing.operator_harness import OperatorHarness

BY_FIRST = Keys(lambda value: value[0])


def test_rolling_reduce_puts_out_every_update() -> None:
    """PF-08"""
    h = OperatorHarness(ReduceOperator(lambda a, b: (a[0], a[1] + b[1]), BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2))
    h.process(("a", 3))
    assert h.values() == [("a", 1), ("b", 5), ("a", 3), ("a", 6)]


def test_batch_reduce_puts_out_final_values_at_the_end() -> None:
    """PF-08"""
    h = OperatorHarness(BatchReduceOperator(lambda a, b: (a[0], a[1] + b[1]), BY_FIRST), keyed=True)
    h.process(("a", 1), ("b", 5), ("a", 2))
    assert h.values() == []
    h.finish()
    assert h.values() == [("a", 3), ("b", 5)]
