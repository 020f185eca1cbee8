"""Batch mode: an operator gets one key after the other, and a broadcast side first."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import MapFunction
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.state import MapStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from flinkray.streaming.operators.batch_mode import BroadcastFirstOperator, SortedInputsOperator
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.keyed import BatchReduceOperator, KeyedMapOperator
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.operators.two_inputs import KeyedCoProcessOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Watermark
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import BY_FIRST, columns, failure, unlike_five


class Number(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value[0], self.count.value()


def test_backend_in_batch_mode_has_keyed_state_of_the_current_key_only() -> None:
    operator = SortedInputsOperator(
        KeyedMapOperator(Number(), Keys(lambda v: v[0])), [Keys(lambda v: v[0])], memory=2_000
    )
    h = OperatorHarness(operator, keyed=True)
    for number in range(200):
        h.process((number % 50, number))
    assert operator.sorter.number_of_runs > 10
    largest = 0
    inner: Any = operator.operator
    put_out = inner.output.emit

    def watching(block: Any) -> None:
        nonlocal largest
        largest = max(largest, inner.keyed_state.number_of_entries("count"))
        put_out(block)

    inner.output.emit = watching
    h.watermark(MAX_TIMESTAMP)
    assert largest == 1
    assert sorted(h.values()) == [(key, n) for key in range(50) for n in range(1, 5)]
    with pytest.raises(StreamError, match="takes no checkpoints"):
        operator.capture(1)
    operator.close()
    assert operator.sorter.number_of_runs == 0


class Times(KeyedProcessFunction[Any, Any, Any]):
    """Each record, and a timer of event time a hundred later."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer"


def timers(keys: Keys = BY_FIRST) -> OperatorHarness:
    operator = SortedInputsOperator(KeyedProcessOperator(Times(), keys), [keys])
    return OperatorHarness(operator, keyed=True)


def test_batch_mode_processes_records_by_key_and_time_before_the_last_watermark() -> None:
    h = timers()
    h.process(("b", 1), ("a", 2), ("b", 3), at=[9, 8, 7])
    assert h.output() == []
    h.watermark(MAX_TIMESTAMP)
    *records, watermark = h.output()
    assert watermark == Watermark(MAX_TIMESTAMP)
    of = {key: [record for record in records if record.value[0] == key] for key in "ab"}
    assert of == {
        "a": [Record(("a", 2), 8), Record(("a", "timer"), 108)],
        "b": [
            Record(("b", 3), 7), Record(("b", 1), 9),
            Record(("b", "timer"), 107), Record(("b", "timer"), 109),
        ],
    }  # fmt: skip
    assert sorted(records, key=lambda r: r.value[0] != records[0].value[0]) == records


def test_columns_are_processed_as_rows() -> None:
    h = timers(Keys("k"))
    h.process_columns(columns([9, 8], k=["a", "a"], v=[1, 2]))
    h.watermark(MAX_TIMESTAMP)
    rows = [(record.value.v, record.timestamp) for record in h.output()[:2]]
    assert rows == [(2, 8), (1, 9)]


def test_watermarks_before_the_last_and_idleness_are_ignored_in_batch_mode() -> None:
    h = timers()
    h.process(("a", 1), at=5)
    h.watermark(1000)
    h.status(True)
    h.status(False)
    h.finish()
    assert h.output() == []


class Sides(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield 1, value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield 2, value


def test_batch_mode_merges_two_inputs_by_time_once_both_have_ended() -> None:
    inner = KeyedCoProcessOperator(Sides(), BY_FIRST, BY_FIRST)
    h = OperatorHarness(SortedInputsOperator(inner, [BY_FIRST, BY_FIRST]), keyed=True)
    h.process(("a", "x"), ("a", "y"), at=[1, 5])
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == []
    h.process(("a", "z"), at=3, on=1)
    h.watermark(MAX_TIMESTAMP, on=1)
    assert h.records() == [((1, ("a", "x")), 1), ((2, ("a", "z")), 3), ((1, ("a", "y")), 5)]


RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


class Scaled(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value[1] * ctx.get_broadcast_state(RULES)["factor"]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)["factor"] = value


def test_batch_mode_processes_the_broadcast_input_before_the_sorted_input() -> None:
    inner = KeyedBroadcastProcessOperator(Scaled(), BY_FIRST, (RULES,))
    h = OperatorHarness(SortedInputsOperator(inner, [BY_FIRST, None]), keyed=True)
    h.process(("a", 2))
    h.process(10, on=1)
    for on in (0, 1):
        h.watermark(MAX_TIMESTAMP, on=on)
    assert h.values() == [20]


def test_end_of_input_finishes_the_inner_operator() -> None:
    finished: list[str] = []

    class Finishing(BatchReduceOperator):
        def finish(self) -> None:
            finished.append("yes")

    inner = Finishing(lambda a, b: b, BY_FIRST)
    h = OperatorHarness(SortedInputsOperator(inner, [BY_FIRST]), keyed=True)
    h.finish()
    assert finished == ["yes"]


def test_error_of_an_operator_in_batch_mode_names_operator_and_record() -> None:
    def act(h: OperatorHarness) -> None:
        h.process(("a", 4), ("b", 5))
        h.watermark(MAX_TIMESTAMP)

    inner = KeyedMapOperator(unlike_five, BY_FIRST)
    error = failure(SortedInputsOperator(inner, [BY_FIRST]), act, keyed=True)
    assert error.record == "('b', 5)"


def test_batch_mode_processes_many_keys_with_few_records_between_two_pauses() -> None:
    """A pause takes longer than a key with one record."""
    h = OperatorHarness(
        SortedInputsOperator(KeyedMapOperator(Number(), BY_FIRST), [BY_FIRST]), keyed=True
    )
    for number in range(5000):
        h.process((number, "a"))
    pauses: list[None] = []
    h.operator.context.turn.pause = lambda: pauses.append(None)
    h.watermark(MAX_TIMESTAMP)
    assert len(h.values()) == 5000
    assert 2 <= len(pauses) <= 100  # the clock of the harness stands still


RULES_BY_NUMBER: MapStateDescriptor[int, int] = MapStateDescriptor("rules")


class Enrich(BroadcastProcessFunction[Any, Any, Any]):
    closed = False

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, list(ctx.get_broadcast_state(RULES_BY_NUMBER).keys())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES_BY_NUMBER).put(unlike_five(value), 0)
        yield "rule", value

    def close(self) -> None:
        self.closed = True


def operator(memory: int = 1 << 20) -> BroadcastFirstOperator:
    return BroadcastFirstOperator(BroadcastProcessOperator(Enrich(), (RULES_BY_NUMBER,)), memory)


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


def test_records_that_wait_for_the_broadcast_side_and_exceed_memory_are_in_a_file() -> None:
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
