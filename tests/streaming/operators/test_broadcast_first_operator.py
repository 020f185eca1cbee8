"""Batch mode: the broadcast side comes before the records of the other side."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.state import MapStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import BroadcastProcessFunction
from flinkray.streaming.operators.batch_mode import BroadcastFirstOperator
from flinkray.streaming.operators.broadcast import BroadcastProcessOperator
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Watermark
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import BY_FIRST, columns, failure, unlike_five

RULES: MapStateDescriptor[int, int] = MapStateDescriptor("rules")


class Enrich(BroadcastProcessFunction[Any, Any, Any]):
    closed = False

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, list(ctx.get_broadcast_state(RULES).keys())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(unlike_five(value), 0)
        yield "rule", value

    def close(self) -> None:
        self.closed = True


def operator(memory: int = 1 << 20) -> BroadcastFirstOperator:
    return BroadcastFirstOperator(BroadcastProcessOperator(Enrich(), (RULES,)), memory)


def test_records_wait_for_the_end_of_the_broadcast_side() -> None:
    h = OperatorHarness(operator())
    h.process("a", at=7)
    h.process_columns(columns([8], k=["b"]))
    h.process(1, on=1)
    assert h.values() == [("rule", 1)]
    h.process_columns(columns(k=[2]), on=1)
    h.output()
    h.watermark(MAX_TIMESTAMP, on=1)
    waited = h.output()
    assert [each.timestamp for each in waited] == [7, 8]
    assert [len(each.value[1]) for each in waited] == [2, 2]
    h.process("c")
    h.watermark(MAX_TIMESTAMP)
    record, end = h.output()
    assert isinstance(record, Record)
    assert record.value[0] == "c"
    assert end == Watermark(MAX_TIMESTAMP)


def test_last_watermark_is_emitted_after_records_that_wait_for_the_broadcast_side() -> None:
    h = OperatorHarness(operator())
    h.process("a")
    h.watermark(MAX_TIMESTAMP)
    h.status(True)
    h.status(False)
    assert h.output() == []
    h.watermark(MAX_TIMESTAMP, on=1)
    assert h.output() == [Record(("a", []), None), Watermark(MAX_TIMESTAMP)]


def test_records_that_do_not_fit_into_memory_wait_in_a_file() -> None:
    made = operator(memory=2_000)
    h = OperatorHarness(made)
    for number in range(50):
        h.process(f"text {number}", at=number)
        h.process_columns(columns([number], k=[number]))
    assert made.kept.has_file
    h.watermark(MAX_TIMESTAMP, on=1)
    values = [value for value, _ in h.values()]
    assert values[::2] == [f"text {number}" for number in range(50)]
    assert [row.k for row in values[1::2]] == list(range(50))
    assert not made.kept.has_file


def test_look_up_in_batch_mode_does_not_keep_waiting_records_in_keyed_state() -> None:
    """In batch mode, only the table is in keyed state."""
    waiting: list[int] = []

    def look_up(value: Any, row: Any) -> Any:
        waiting.append(look_up_operator.timers.number_of_event_time_timers())
        return row

    look_up_operator = LookUpOperator(look_up, BY_FIRST, BY_FIRST, "table")
    h = OperatorHarness(BroadcastFirstOperator(look_up_operator), keyed=True)
    h.process(("a", 1), ("b", 2))
    h.process(("a", "A"), on=1)
    h.watermark(MAX_TIMESTAMP, on=1)
    assert h.values() == [("a", "A"), None]
    assert waiting == [0, 0]


def test_closing_the_operator_closes_its_function_and_deletes_waiting_records() -> None:
    made = operator(memory=1)
    OperatorHarness(made).process("a")
    assert made.kept.has_file
    made.close()
    assert not made.kept.has_file
    assert made.operator.function.closed


def test_error_names_its_record_and_checkpoints_are_refused() -> None:
    error = failure(operator(), lambda h: h.process(4, 5, 6, on=1))
    assert error.record == "5"
    with pytest.raises(StreamError, match="takes no checkpoints"):
        OperatorHarness(operator()).snapshot(1)
