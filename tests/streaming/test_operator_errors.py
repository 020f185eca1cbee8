"""What fails says whose code failed, in which operator and subtask, and on what."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from flinkray.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import CallbackSink, IteratorSource
from flinkray.datastream.state import ReducingStateDescriptor
from flinkray.datastream.window import EventTimeSessionWindows
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.manual_clock import ManualClock

Build = Callable[[Any], Any]


def fail_on_five(value: Any) -> Any:
    """The user's code of all these programs."""
    if value == 5:
        raise ValueError("five is not liked")
    return value


class FailingTimer(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        fail_on_five(timestamp)


class FailingAdd(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return fail_on_five(value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a


def by_itself() -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)


def timed(stream: Any) -> Any:
    return stream.assign_timestamps_and_watermarks(by_itself())


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda value: "k")


# Name of the operator -> the program.  All fail on the record 5.
ON_RECORDS: dict[str, tuple[str, Build]] = {
    "map": ("Map", lambda s: s.map(fail_on_five)),
    "flat map, generator, with times": (
        "FlatMap",
        lambda s: timed(s).flat_map(lambda v: (fail_on_five(x) for x in [v])),
    ),
    "reduce": ("Keyed Reduce", lambda s: keyed(s).reduce(lambda a, b: fail_on_five(b))),
    "key selector of a function on keys": (
        "KEYED PROCESS",
        lambda s: s.key_by(fail_on_five).process(FailingTimer()),
    ),
    "session's aggregate": (
        "EventTimeSessionWindows, Aggregate",
        lambda s: (
            keyed(timed(s)).window(EventTimeSessionWindows.with_gap(2)).aggregate(FailingAdd())
        ),
    ),
    "callback": ("Sink: Writer", lambda s: s.sink_to(CallbackSink(fail_on_five))),
}


def failure_of(build: Build, values: Sequence[Any] = range(10), parallelism: int = 1) -> Any:
    env = StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(parallelism)
    build(env.from_collection(values))
    with pytest.raises(OperatorError) as caught:
        env.execute()
    return caught.value


def assert_user_first(text: str) -> None:
    """The first frame of the traceback is the user's, and none of the package is before it."""
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert __file__ in lines[1]


@pytest.mark.parametrize("program", ON_RECORDS)
def test_error_on_a_record_names_operator_subtask_record_and_origin(program: str) -> None:
    name, build = ON_RECORDS[program]
    error = failure_of(build)
    assert (error.operator, error.subtask) == (name, "1/1")
    assert error.record.startswith("5"), str(error)
    assert error.origin == "Source: Collection Source (1/1), in the batch from record 0 on"
    assert_user_first(str(error))
    assert "ValueError: five is not liked\nin operator " in str(error)


def test_error_in_the_key_selector_of_a_partitioner_names_the_record() -> None:
    """The key selector runs in the task that sends the records to the keyed operator."""
    error = failure_of(lambda s: s.key_by(fail_on_five).map(lambda v: v), parallelism=2)
    assert_user_first(str(error))
    assert (error.record, error.subtask) == ("5", "1/1")
    assert error.operator == "Source: Collection Source"
    assert "batch from record 0" in error.origin


def test_error_in_a_custom_partitioner_names_the_record() -> None:
    error = failure_of(
        lambda s: s.partition_custom(lambda key, n: fail_on_five(key) % n, lambda v: v).map(abs),
        parallelism=2,
    )
    assert_user_first(str(error))
    assert (error.operator, error.record) == ("Source: Collection Source", "5")


def test_partitioner_that_chooses_a_missing_channel_is_reported_with_its_choice() -> None:
    error = failure_of(
        lambda s: s.partition_custom(lambda key, n: key, lambda v: v).map(abs), parallelism=2
    )
    assert "the partitioner chose channel 2 for key 2" in str(error)
    assert error.record == "2"


@pytest.mark.parametrize("wrong", [None, "0", 1.0, [0]], ids=repr)
def test_partitioner_that_chooses_a_wrong_value_is_reported_with_its_choice(wrong: Any) -> None:
    error = failure_of(
        lambda s: s.partition_custom(
            lambda key, n: wrong if key == 9 else np.int64(0), lambda v: v
        ).map(abs),
        parallelism=2,
    )
    assert f"the partitioner chose channel {wrong!r} for key 9: there are channels 0" in str(error)
    assert "File " not in str(error)
    assert error.record == "9"


def test_error_in_the_second_operator_of_a_chain_names_this_operator() -> None:
    error = failure_of(lambda s: s.map(lambda v: v + 1).name("first").map(fail_on_five).name("2nd"))
    assert (error.operator, error.record) == ("2nd", "5")


def test_error_in_an_operator_after_a_side_output_names_this_operator() -> None:
    tag: OutputTag[int] = OutputTag("fives")

    class Aside(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield tag, value

    error = failure_of(lambda s: s.process(Aside()).get_side_output(tag).map(fail_on_five))
    assert (error.operator, error.record) == ("Map", "5")


def test_traceback_keeps_user_frames_below_state_calls() -> None:
    class Sums(KeyedProcessFunction[Any, Any, Any]):
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_reducing_state(
                ReducingStateDescriptor("total", lambda a, b: fail_on_five(b), Types.LONG())
            )

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.total.add(value)

    error = failure_of(lambda s: keyed(s).process(Sums()))
    assert "in process_element" in str(error)
    assert "in fail_on_five" in str(error)
    assert error.record == "5"


def test_operator_error_is_equal_after_pickling() -> None:
    error = failure_of(lambda s: keyed(s).process(FailingTimer()))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.occasion == error.occasion


@pytest.mark.parametrize(
    "source",
    [IteratorSource(lambda split, offset: 5), IteratorSource.of(lambda: 5)],  # type: ignore[arg-type, return-value]
    ids=["offsets", "of"],
)
def test_function_that_returns_no_iterator_is_reported_with_its_return_value(source: Any) -> None:
    env = StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(1)
    env.from_source(source, None, "five").print()
    with pytest.raises(OperatorError, match="must return an iterator: it returned 5") as caught:
        env.execute()
    assert caught.value.operator == "Source: five"
    assert "File " not in str(caught.value)


class WrongTimer(KeyedProcessFunction[Any, Any, Any]):
    def __init__(self, method: str, time: Any) -> None:
        self.method, self.time = method, time

    def process_element(self, value: Any, ctx: Any) -> None:
        getattr(ctx.timer_service(), self.method)(self.time)


@pytest.mark.parametrize("wrong", [None, "0", 1.5], ids=repr)
@pytest.mark.parametrize("does", ["register", "delete"])
@pytest.mark.parametrize("kind", ["event", "processing"])
def test_timer_at_a_non_integer_time_is_reported_with_its_record(
    kind: str, does: str, wrong: Any
) -> None:
    function = WrongTimer(f"{does}_{kind}_time_timer", wrong)
    error = failure_of(lambda s: keyed(s).process(function))
    assert_user_first(str(error))
    assert f"a timer was set to {wrong!r}: a time is a whole number (int)" in str(error)
    assert error.record == "0"


class Single(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return timestamp


@pytest.mark.parametrize(
    ("build", "place"),
    [
        (lambda s: s.flat_map(lambda v: [v] if v < 9 else v), "on record 9"),
        (lambda s: keyed(s).process(Single()), "on the timer for 0 of key 'k'"),
    ],
    ids=["record", "timer"],
)
def test_error_about_a_single_returned_result_says_what_to_return(build: Build, place: str) -> None:
    error = failure_of(build)
    assert "which is no list or iterator of results: yield each result" in str(error)
    assert place in str(error)
    assert "File " not in str(error)
