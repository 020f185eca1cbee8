"""Streams through asynchronous functions, in one process and on a cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    Configuration,
    JobClient,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.async_retry_predicates import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from flinkray.datastream.async_retry_strategies import NO_RETRY_STRATEGY
from flinkray.datastream.common import JobStatus
from flinkray.datastream.connectors import (
    CallbackSink,
    DataGeneratorSource,
    DiscardingSink,
    IteratorSource,
)
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.streaming.local.local_job import LocalJob
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.stuck_functions import OneAtATime
from tests.datastream.threads import none_left

LONGEST = 60
"""Seconds that a job may take to end."""

WAIT = Time.seconds(LONGEST)
FORMS = pytest.mark.parametrize(
    "wait",
    [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait],
    ids=["ordered", "unordered"],
)


class Events:
    """What functions, sinks and tests tell each other; functions are copied, and refer to this by
    its place in the module."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.taken: list[Any] = []


EVENTS = Events()


@pytest.fixture(autouse=True)
def events() -> Any:
    global EVENTS
    EVENTS = Events()
    yield
    EVENTS.released.set()


def local(_: Any = None) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(2)


PLACES = pytest.mark.parametrize("env_of", [local, on], ids=["here", "there"])
EnvironmentOf = Callable[[Any], StreamExecutionEnvironment]


class Second(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class Enrich(AsyncFunction[Any, Any]):
    """Takes longer for some than for others."""

    async def open(self, runtime_context: Any) -> None:
        self.known = {number: f"name {number}" for number in range(1000)}

    async def async_invoke(self, value: Any) -> Any:
        await asyncio.sleep(value % 7 / 1000)
        return [(value, self.known[value])]


@PLACES
@FORMS
def test_async_function_gives_the_results_of_each_record_once(
    wait: Any, env_of: EnvironmentOf, cluster: ThreadedCluster
) -> None:
    env = env_of(cluster)
    numbers = env.from_collection(range(300)).rebalance().map(lambda value: value)
    named = wait(numbers, Enrich(), WAIT, 20, Types.TUPLE([Types.INT(), Types.STRING()]))
    results = list(named.rebalance().map(lambda value: value).execute_and_collect())
    assert sorted(results) == [(number, f"name {number}") for number in range(300)]


@PLACES
def test_async_function_on_a_keyed_stream_gets_rows_of_key_and_value(
    env_of: EnvironmentOf, cluster: ThreadedCluster
) -> None:
    """As in PyFlink. All rows of a key are in one subtask."""
    env = env_of(cluster)
    keyed = env.from_collection(range(10)).key_by(lambda value: value % 3)
    rows = AsyncDataStream.unordered_wait(keyed, Whole(), WAIT)
    results = list(rows.execute_and_collect())
    assert sorted((row[0], row[1]) for row, _ in results) == sorted((v % 3, v) for v in range(10))
    assert len({(row[0], subtask) for row, subtask in results}) == 3


class RunningSum(AsyncFunction[Any, Any]):
    """Reads its state, waits, and writes it: records of a key in between would be lost. Fails once,
    after *records* records."""

    def __init__(self, records: int) -> None:
        self._records = records

    def open(self, runtime_context: Any) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self._is_first = runtime_context.get_attempt_number() == 0
        self._seen = 0

    async def async_invoke(self, value: Any) -> Any:
        key, number = value
        before = self._sum.value() or 0
        await asyncio.sleep(number % 5 / 1000)
        self._sum.update(before + number)
        self._seen += 1
        if self._is_first and self._seen > self._records:
            raise ValueError("fails once")
        await asyncio.sleep(0)
        return [(key, self._sum.value())]


@PLACES
@FORMS
def test_keyed_state_of_an_async_function_is_exactly_once(
    wait: Any, env_of: EnvironmentOf, cluster: ThreadedCluster
) -> None:
    """Each key has its own state, also in the middle of a coroutine; and a checkpoint has no half
    of a coroutine, which a restored task would repeat."""
    settings = {
        "execution.checkpointing.interval": "10 ms",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "10",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    env = env_of(cluster).configure(Configuration.from_dict(settings))
    numbers = env.from_source(
        DataGeneratorSource(lambda n: n, 400, 800.0), WatermarkStrategy.no_watermarks(), "numbers"
    ).set_parallelism(1)
    sums = wait(numbers.key_by(lambda n: n % 7), RunningSum(60), WAIT)
    expected = []
    for key in range(7):
        of_key = range(key, 400, 7)
        expected += [(key, sum(of_key[: end + 1])) for end in range(len(of_key))]
    assert sorted(sums.execute_and_collect()) == expected


class Whole(AsyncFunction[Any, Any]):
    """The value and the subtask's number."""

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    async def async_invoke(self, value: Any) -> Any:
        return [(value, self.subtask)]


def test_async_results_are_aggregated_in_batch_mode() -> None:
    env = local().set_runtime_mode(RuntimeExecutionMode.BATCH)
    named = AsyncDataStream.unordered_wait(env.from_collection(range(100)), Enrich(), WAIT, 7)
    counts = named.key_by(lambda pair: pair[0] % 2).map(lambda pair: (pair[0] % 2, 1))
    totals = counts.key_by(lambda pair: pair[0]).sum(1)
    assert sorted(totals.execute_and_collect()) == [(0, 50), (1, 50)]


# --- progress -------------------------------------------------------------------------------------


class FirstAtOnce(AsyncFunction[Any, Any]):
    """All but the first record wait for the test."""

    async def async_invoke(self, value: Any) -> Any:
        if value:
            assert await asyncio.to_thread(EVENTS.released.wait, LONGEST)
        return [value]


def take(value: Any) -> None:
    EVENTS.taken.append(value)
    EVENTS.released.set()


class AfterTheFirst(AsyncFunction[Any, Any]):
    """All but the first record wait for a file."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    async def async_invoke(self, value: Any) -> Any:
        if value:
            await asyncio.to_thread(wait_until, Path(self.file).exists, 20, "the first result")
        return [value]


@PLACES
def test_finished_async_results_are_sent_before_the_task_waits_for_others(
    env_of: EnvironmentOf, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The task waits in the middle of a batch. In one process no buffer time-out sends the
    results."""
    env = env_of(cluster).set_parallelism(1)
    if env_of is local:
        env.set_buffer_timeout(10 * LONGEST * 1000)
    gate = tmp_path / "gate"

    def open_gate(value: Any) -> Any:
        gate.touch()
        return value

    numbers = env.from_collection(range(5))
    function = AfterTheFirst(gate)
    stream = AsyncDataStream.ordered_wait(numbers, function, WAIT, capacity=1)
    assert list(stream.rebalance().map(open_gate).execute_and_collect()) == [*range(5)]


def test_other_tasks_of_the_process_run_while_an_async_task_waits() -> None:
    env = local().set_parallelism(1)
    waiting = env.from_collection(range(1, 5))
    stream = AsyncDataStream.ordered_wait(waiting, FirstAtOnce(), WAIT, capacity=1)
    stream.sink_to(CallbackSink(keep))
    env.from_collection(range(10_000)).rebalance().filter(lambda v: v == 9_999).sink_to(
        CallbackSink(take)
    )
    env.execute()
    assert sorted(EVENTS.taken) == [1, 2, 3, 4, 9_999]


def keep(value: Any) -> None:
    EVENTS.taken.append(value)


def test_task_that_waits_for_an_async_result_uses_little_processor_time() -> None:
    """Periodic watermarks and records of the source are due while the task waits."""

    class ForAWhile(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any) -> Any:
            await asyncio.sleep(0.25)
            return [value]

    env = local().set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    source = DataGeneratorSource(lambda number: ("a", number), 3, records_per_second=1000.0)
    stamped = env.from_source(source, None, "numbers").assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(Second())
    )
    stream = AsyncDataStream.ordered_wait(stamped, ForAWhile(), WAIT, capacity=1)
    stream.sink_to(CallbackSink(keep))
    job = LocalJob(env.get_stream_graph())
    rounds = 0
    while not job.finished:
        job.advance()
        rounds += 1
    job.close()
    assert len(EVENTS.taken) == 3
    assert rounds < 1000


@PLACES
def test_async_results_are_sent_although_no_further_records_arrive(
    env_of: EnvironmentOf, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The source gives the next record when the earlier result has been received."""
    env = env_of(cluster).set_parallelism(1)
    gate = tmp_path / "gate"

    def open_gate(value: Any) -> Any:
        gate.touch()
        return value

    numbers = env.from_source(OneAtATime(2, gate), None, "numbers")
    stream = AsyncDataStream.ordered_wait(numbers, Later(), WAIT).map(open_gate)
    assert list(stream.execute_and_collect()) == [0, 1]


class Later(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any) -> Any:
        await asyncio.sleep(0.05)
        return [value]


# --- ends -----------------------------------------------------------------------------------------


class Endless(AsyncFunction[Any, Any]):
    """Leaves a file when a coroutine has begun, and others when it was cancelled and closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    async def async_invoke(self, value: Any) -> Any:
        (Path(self.folder) / "begun").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (Path(self.folder) / "cancelled").touch()

    async def close(self) -> None:
        (Path(self.folder) / "closed").touch()


@PLACES
@pytest.mark.parametrize("capacity", [1, 100])
def test_endless_coroutines_are_cancelled_with_their_program(
    capacity: int, env_of: EnvironmentOf, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Also where the task waits for a result in the middle of a batch or at the end of its
    input."""
    env = env_of(cluster).set_parallelism(1)
    numbers = env.from_collection(range(10))
    stream = AsyncDataStream.unordered_wait(numbers, Endless(tmp_path), Time.days(1), capacity)
    stream.sink_to(DiscardingSink())
    with none_left():
        client = env.execute_async()
        wait_until(lambda: (tmp_path / "begun").exists(), LONGEST, "a coroutine to begin")
        client.cancel().result(LONGEST)
        assert client.get_job_status().result(LONGEST) is JobStatus.CANCELED
        wait_until(lambda: (tmp_path / "closed").exists(), LONGEST, "the function to be closed")
    assert (tmp_path / "cancelled").exists()


# --- checkpoints ----------------------------------------------------------------------------------


def fifty(number: int, offset: int) -> Iterator[int]:
    """Has no end before the test releases it."""
    yield from range(offset, 50)
    assert EVENTS.released.wait(LONGEST)


def waiting_program(env: StreamExecutionEnvironment, parallelism: int) -> JobClient:
    numbers = env.from_source(IteratorSource(fifty, 1), None, "numbers").uid("numbers")
    stream = AsyncDataStream.unordered_wait(numbers.rebalance(), EveryThird(), WAIT)
    stream = stream.uid("third").set_parallelism(parallelism)
    stream.sink_to(CallbackSink(keep)).uid("sink").set_parallelism(1)
    return env.execute_async()


class EveryThird(AsyncFunction[Any, Any]):
    """Waits for the test, but for every third record."""

    async def async_invoke(self, value: Any) -> Any:
        if value % 3:
            assert await asyncio.to_thread(EVENTS.released.wait, LONGEST)
        return [value]


def test_records_that_wait_for_async_results_give_them_once_after_a_restore(
    tmp_path: Path,
) -> None:
    """With another parallelism."""
    env = local().set_parallelism(1).enable_checkpointing(3_600_000)
    first = waiting_program(env, 2)
    thirds = [*range(0, 50, 3)]
    wait_until(lambda: sorted(EVENTS.taken) == thirds, LONGEST, "results that need not wait")
    savepoint = first.trigger_savepoint(str(tmp_path)).result(LONGEST)
    first.cancel().result(LONGEST)
    assert sorted(EVENTS.taken) == thirds
    EVENTS.released.set()
    start = Configuration().set_string("execution.state-recovery.path", savepoint)
    later = waiting_program(local().configure(start).set_parallelism(1), 3)
    later.get_job_execution_result().result(LONGEST)
    assert sorted(EVENTS.taken) == [*range(50)]


# --- what is refused ------------------------------------------------------------------------------


class NotAsync(AsyncFunction[Any, Any]):
    def async_invoke(self, value: Any) -> Any:
        return [value]


class Yields(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any) -> Any:
        yield value


class AwaitsLate(Whole):
    async def timeout(self, value: Any) -> Any:  # type: ignore[override]
        return []


RETRY: Any = AsyncRetryStrategy.fixed_delay(1, 1, None, None)


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        (NotAsync(), {}, "'async_invoke' of class 'NotAsync' should be declared as 'async def'"),
        (Yields(), {}, "not yield them"),
        (AwaitsLate(), {}, "AwaitsLate.timeout is `async def`"),
        (Whole, {}, "an AsyncFunction is needed, got <class"),
        (print, {}, "an AsyncFunction is needed"),
        (Whole(), {"capacity": 0}, "capacity is a number of records"),
        (Whole(), {"capacity": 1.5}, "capacity is a number of records"),
        (Whole(), {"timeout": 1.5}, "expected a span of time"),
        (Whole(), {"async_retry_strategy": None}, "an AsyncRetryStrategy is needed"),
        (Whole(), {"async_retry_strategy": RETRY, "timeout": 0}, "Timeout should be configured"),
    ],
)
def test_wrong_async_function_or_setting_is_refused_when_the_stream_is_built(
    function: Any, settings: Any, words: str
) -> None:
    given = {"timeout": WAIT, "async_retry_strategy": NO_RETRY_STRATEGY, **settings}
    numbers = local().from_collection([1])
    with pytest.raises((TypeError, ValueError), match=words):
        AsyncDataStream.ordered_wait_with_retry(numbers, function, **given)


@pytest.mark.parametrize(
    "build",
    [
        lambda: AsyncRetryStrategy.exponential_backoff(0, 1, 1, 1.0, None, None),
        lambda: AsyncRetryStrategy.exponential_backoff(1, 0, 1, 1.0, None, None),
        lambda: AsyncRetryStrategy.exponential_backoff(1, 1, 0, 1.0, None, None),
        lambda: AsyncRetryStrategy.exponential_backoff(1, 1, 1, 0.0, None, None),
        lambda: AsyncRetryStrategy.fixed_delay(0, 1, None, None),
        lambda: AsyncRetryStrategy.fixed_delay(1, 0, None, None),
    ],
)
def test_async_retry_strategy_with_zero_attempts_delay_or_multiplier_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="should be greater than zero"):
        build()


def test_retry_delays_grow_up_to_a_limit() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(4, 100, 500, 2.0, None, None)
    assert [strategy.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 5)] == [
        100, 200, 400, 500, 500,
    ]  # fmt: skip
    assert [strategy.can_retry(n) for n in (1, 4, 5)] == [True, True, False]
    fixed = AsyncRetryStrategy.fixed_delay(2, 7, None, None)
    assert [fixed.get_backoff_time_millis(n) for n in (1, 2)] == [7, 7]
    assert AsyncRetryStrategy.no_restart() is NO_RETRY_STRATEGY
    assert not NO_RETRY_STRATEGY.can_retry(1)


def test_predefined_retry_predicates_match_empty_results_and_exceptions() -> None:
    assert [empty_result_predicate(r) for r in (None, [], [1])] == [True, True, False]
    assert [has_exception_predicate(e) for e in (None, ValueError())] == [False, True]
    assert exception_type_predicate(KeyError(), LookupError)
    assert not exception_type_predicate(None, LookupError)
