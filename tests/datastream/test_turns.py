"""However much a record or a watermark sets off: results come out meanwhile, in bounded memory, and
a cancellation is served."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from flinkray.datastream import (
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeDomain,
    WatermarkStrategy,
)
from flinkray.datastream.common import JobStatus
from flinkray.datastream.connectors import CallbackSink, IteratorSource
from flinkray.datastream.window import TumblingEventTimeWindows

LONGEST = 60
"""Seconds that a job may take to end."""


class Counts:
    """What functions and sinks of one program count; they are copied with their operators, and
    refer to it by its place in the module."""

    def __init__(self) -> None:
        self.made = self.taken = self.most_between = 0
        self.begun = threading.Event()

    def make(self) -> None:
        self.made += 1
        self.most_between = max(self.most_between, self.made - self.taken)

    def take(self, value: Any) -> None:
        self.taken += 1


COUNTS = Counts()


@pytest.fixture(autouse=True)
def counts() -> None:
    global COUNTS
    COUNTS = Counts()


def take(value: Any) -> None:
    COUNTS.take(value)


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


class Many(FlatMapFunction[Any, Any]):
    """Very many results of each record."""

    def __init__(self, number: int) -> None:
        self.number = number

    def flat_map(self, value: Any) -> Any:
        for number in range(self.number):
            COUNTS.make()
            yield number


@pytest.mark.parametrize("is_chained", [True, False])
def test_two_million_results_of_ten_records_are_never_all_in_memory(is_chained: bool) -> None:
    env = environment()
    stream = env.from_collection(range(10)).flat_map(Many(200_000))
    if not is_chained:
        stream = stream.rebalance().map(lambda value: value)
    stream.sink_to(CallbackSink(take))
    env.execute()
    assert COUNTS.made == COUNTS.taken == 2_000_000
    assert COUNTS.most_between <= (4096 if is_chained else 20 * 4096)


class Endless(FlatMapFunction[Any, Any]):
    """Never has enough."""

    def __init__(self) -> None:
        self.closed = False

    def flat_map(self, value: Any) -> Any:
        try:
            for number in itertools.count():
                COUNTS.begun.set()
                yield number
        finally:
            COUNTS.make()


def cancelled(env: StreamExecutionEnvironment) -> None:
    """Cancel the program when its function has begun; it ends."""
    client = env.execute_async()
    assert COUNTS.begun.wait(LONGEST)
    client.cancel().result(LONGEST)
    assert client.get_job_status().result(LONGEST) is JobStatus.CANCELED


@pytest.mark.parametrize("is_chained", [True, False])
def test_function_with_endless_results_for_one_record_can_be_cancelled(is_chained: bool) -> None:
    env = environment()
    stream = env.from_collection([1]).flat_map(Endless())
    if not is_chained:
        stream = stream.rebalance().map(lambda value: value)
    stream.sink_to(CallbackSink(take))
    cancelled(env)
    assert COUNTS.made == 1  # the function's own clean-up has run


class EachOfManyWindows(ProcessWindowFunction[Any, Any, Any, Any]):
    """One result of each."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        COUNTS.make()
        COUNTS.begun.set()
        yield key


BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: 0)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_watermark_that_closes_very_many_windows_lets_results_be_sent_meanwhile(
    parallelism: int,
) -> None:
    env = environment(parallelism)
    stamped = env.from_collection(range(60_000)).assign_timestamps_and_watermarks(BY_VALUE)
    windows = stamped.key_by(lambda value: value).window(TumblingEventTimeWindows.of(10))
    windows.process(EachOfManyWindows()).sink_to(CallbackSink(take))
    env.execute()
    assert COUNTS.made == COUNTS.taken == 60_000
    assert COUNTS.most_between <= parallelism * 4096


class Again(KeyedProcessFunction[Any, Any, Any]):
    """A timer that registers itself again, for a time that has passed already."""

    def __init__(self, domain: TimeDomain) -> None:
        self.domain = domain

    def register(self, ctx: Any) -> None:
        if self.domain is TimeDomain.EVENT_TIME:
            ctx.timer_service().register_event_time_timer(1)
        else:
            ctx.timer_service().register_processing_time_timer(1)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.register(ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        COUNTS.begun.set()
        self.register(ctx)


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("domain", TimeDomain)
def test_timers_that_register_themselves_endlessly_can_be_cancelled(
    mode: RuntimeExecutionMode, domain: TimeDomain
) -> None:
    env = environment().set_runtime_mode(mode)
    stamped = env.from_collection([1]).assign_timestamps_and_watermarks(BY_VALUE)
    stamped.key_by(lambda value: value).process(Again(domain)).sink_to(CallbackSink(take))
    cancelled(env)


class AMillisecond(MapFunction[Any, Any]):
    """Takes that long for each record."""

    def map(self, value: Any) -> Any:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        COUNTS.make()
        return value


@pytest.mark.parametrize("is_chained", [True, False])
def test_slow_function_never_has_many_unsent_results(is_chained: bool) -> None:
    env = environment()
    stream = env.from_collection(range(500))
    if not is_chained:
        stream = stream.rebalance()
    stream.map(AMillisecond()).sink_to(CallbackSink(take))
    env.execute()
    assert COUNTS.taken == 500
    assert COUNTS.most_between <= 64


class Timed(KeyedProcessFunction[Any, Any, Any]):
    """Takes a millisecond for each record; the first registers a timer."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        AMillisecond().map(value)
        if value == 0:
            now = ctx.timer_service().current_processing_time()
            ctx.timer_service().register_processing_time_timer(now + 5)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield COUNTS.made


def test_processing_time_timer_fires_while_a_slow_function_works() -> None:
    """The timer is due after a few milliseconds of the half second that the records take."""
    env = environment()
    stream = env.from_collection(range(500)).rebalance().key_by(lambda value: value % 10)
    with stream.process(Timed()).execute_and_collect() as results:
        (made,) = results
    assert made < 250


def test_iterator_source_sends_its_records_before_its_iterator_blocks() -> None:
    """The iterator continues only when its first records have been received."""

    def waiting() -> Any:
        yield from range(3)
        assert COUNTS.begun.wait(LONGEST)
        yield 3

    def seen(value: Any) -> None:
        take(value)
        if COUNTS.taken == 3:
            COUNTS.begun.set()

    env = environment()
    env.from_source(IteratorSource.of(waiting), None, "waiting").sink_to(CallbackSink(seen))
    env.execute()
    assert COUNTS.taken == 4


def test_iterator_that_waits_for_ever_does_not_delay_a_cancellation() -> None:
    released = threading.Event()

    def waiting() -> Any:
        COUNTS.begun.set()
        released.wait(LONGEST)
        yield 1

    env = environment()
    env.from_source(IteratorSource.of(waiting), None, "waiting").sink_to(CallbackSink(take))
    try:
        cancelled(env)
    finally:
        released.set()
