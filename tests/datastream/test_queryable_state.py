"""State of programs on a cluster is queried while they run, wherever it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.client import JobHandle, QueryableStateClient
from flinkray.client.cli import execute
from flinkray.core.errors import FlinkRayError, JobExecutionError
from flinkray.core.ids import JobID
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateLocationError,
)
from flinkray.datastream import (
    Configuration,
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state import StateError
from flinkray.state.key_encoding import UnsupportedKeyError
from flinkray.streaming.errors import StreamError
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import newest, settings

CONFIGURATION = QUICK_RESTARTS

KEYS = 8
FOR_EVER = 10**12


@pytest.fixture
def client(cluster: ThreadedCluster) -> QueryableStateClient:
    return QueryableStateClient(cluster.client)


def on(cluster: ThreadedCluster, parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(parallelism)


def numbers(
    env: StreamExecutionEnvironment, count: int = FOR_EVER, per_second: float = 4000.0
) -> DataStream:
    """That go on; those below *count* are distinct."""
    source: DataGeneratorSource = DataGeneratorSource(lambda n: min(n, count), FOR_EVER, per_second)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())


def by_key(stream: DataStream) -> KeyedStream:
    return stream.key_by(lambda n: n % KEYS, key_type=Types.LONG())


class Running:
    """A program that runs until it is left."""

    def __init__(self, cluster: ThreadedCluster, env: StreamExecutionEnvironment) -> None:
        job_id = env.execute_async("queried").get_job_id()
        self.job: JobHandle = cluster.client.job(str(job_id))
        self.id = self.job.job_id

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.job.cancel()
        with pytest.raises(flinkray.FlinkRayError):
            self.job.result()


def until(read: Callable[[], Any], is_right: Callable[[Any], bool] = lambda _: True) -> Any:
    """What is read, when it is there and right; before the job runs a query fails (QS-11)."""
    found: list[Any] = []

    def look() -> bool:
        try:
            found.append(read())
        except (UnknownKvStateLocationError, UnknownKeyOrNamespaceError):
            return False
        return is_right(found[-1])

    wait_until(look, 300, "an answer")
    return found[-1]


def count() -> ReducingStateDescriptor[int]:
    return ReducingStateDescriptor("count", lambda one, other: one + other, Types.LONG())


def total() -> ReducingStateDescriptor[int]:
    return ReducingStateDescriptor("total", lambda one, other: one + other, Types.LONG())


# --- what is answered -----------------------------------------------------------------------------

LAST = 400
"""The numbers up to it come once each."""


class Keeps(KeyedProcessFunction[int, int, int]):
    """All kinds of state, of each number up to LAST that comes first."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._descriptors = descriptors()
        self._value = runtime_context.get_state(self._descriptors["value"])
        self._list = runtime_context.get_list_state(self._descriptors["list"])
        self._map = runtime_context.get_map_state(self._descriptors["map"])
        self._sum = runtime_context.get_reducing_state(self._descriptors["sum"])
        self._mean = runtime_context.get_aggregating_state(self._descriptors["mean"])
        default: ValueStateDescriptor[int] = ValueStateDescriptor("default", Types.LONG(), 5)
        default.set_queryable("default")
        self._default = runtime_context.get_state(default)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        if value < LAST:
            self._value.update(value)
            self._list.add(value)
            self._map.put(value, str(value))
            self._sum.add(value)
            self._mean.add(value)
        assert self._default.value() == 5
        yield value


class Mean:
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], one[1] + other[1]]


def descriptors() -> dict[str, Any]:
    """By the name under which they are queried."""
    found: dict[str, StateDescriptor] = {
        "value": ValueStateDescriptor("a", Types.LONG()),
        "list": ListStateDescriptor("b", Types.LONG()),
        "map": MapStateDescriptor("c", Types.LONG(), Types.STRING()),
        "sum": ReducingStateDescriptor("d", lambda one, other: one + other, Types.LONG()),
        "mean": AggregatingStateDescriptor("e", Mean()),
    }
    for name, descriptor in found.items():
        descriptor.set_queryable(name)
    return found


def test_queries_return_state_of_all_kinds_for_every_key(
    cluster: ThreadedCluster, client: QueryableStateClient
) -> None:
    """QS-12, QS-09: compared with the expected state when all numbers have been processed."""
    env = on(cluster)
    by_key(numbers(env, LAST)).process(Keeps()).print()
    known = descriptors()
    keys = range(KEYS)
    of_key = {key: list(range(key, LAST, KEYS)) for key in keys}
    with Running(cluster, env) as running:

        def read(name: str) -> list[Any]:
            return client.get_kv_states(running.id, name, keys, known[name])

        lists = until(
            lambda: read("list"),
            lambda found: all(s is not None and len(s.get()) == LAST // KEYS for s in found),
        )
        assert [sorted(state.get()) for state in lists] == list(of_key.values())
        assert [state.value() in of_key[key] for key, state in enumerate(read("value"))] == (
            [True] * KEYS
        )
        assert [state.get() for state in read("sum")] == [sum(n) for n in of_key.values()]
        means = [sum(n) / len(n) for n in of_key.values()]
        assert [state.get() for state in read("mean")] == means
        for key, entries in enumerate(read("map")):
            assert dict(entries.items()) == {n: str(n) for n in of_key[key]}
        # without a descriptor, and by text
        one = client.get_kv_state(str(running.id), "sum", 3)
        assert one.get() == sum(of_key[3])
        # a default value is nothing that is stored
        with pytest.raises(UnknownKeyOrNamespaceError, match="state 'default' holds nothing"):
            client.get_kv_state(running.id, "default", 3)
        assert client.get_kv_states(running.id, "default", [3, 4]) == [None, None]
        assert client.get_kv_states(running.id, "sum", [3, KEYS], known["sum"])[1] is None


def test_query_that_cannot_be_answered_fails_with_the_reason(
    cluster: ThreadedCluster, client: QueryableStateClient
) -> None:
    """QS-11."""
    env = on(cluster)
    by_key(numbers(env)).as_queryable_state("totals", total())
    nowhere = JobID(b"?" * 16)
    with pytest.raises(KvStateJobNotFoundError) as foreign:
        client.get_kv_state(nowhere, "totals", 1)
    assert str(foreign.value) == (
        f"FlinkJobNotFoundException: Could not find Flink job ({nowhere})"
    )
    with Running(cluster, env) as running:
        until(lambda: client.get_kv_state(running.id, "totals", 1, total()))
        with pytest.raises(UnknownKvStateLocationError) as unknown:
            client.get_kv_state(running.id, "nope", 1)
        assert str(unknown.value).startswith(
            "UnknownKvStateLocation: No KvStateLocation found for KvState instance with name 'nope'"
        )
        with pytest.raises(StateError, match="is reducing state and is queried with Value"):
            client.get_kv_state(running.id, "totals", 1, ValueStateDescriptor("x"))
        text: StateDescriptor = ReducingStateDescriptor("total", max, Types.STRING())
        with pytest.raises(StateError, match="stored as Long and is asked for as String"):
            client.get_kv_state(running.id, "totals", 1, text)
        with pytest.raises(UnsupportedKeyError, match="is no LONG"):
            client.get_kv_state(running.id, "totals", "one")
        with pytest.raises(FlinkRayError, match="queried with a namespace"):
            client.get_kv_state(running.id, "totals", 1, namespace="window")
        # the others are answered
        assert client.get_kv_state(running.id, "totals", 1, total()).get() > 0
    with pytest.raises(KvStateJobNotFoundError, match="Could not find Flink job"):
        client.get_kv_state(running.id, "totals", 1)


def test_queries_can_be_awaited_on_an_event_loop(
    cluster: ThreadedCluster, client: QueryableStateClient
) -> None:
    env = on(cluster)
    by_key(numbers(env)).as_queryable_state("last")
    with Running(cluster, env) as running:
        until(lambda: client.get_kv_state(running.id, "last", 5))

        async def ask() -> tuple[Any, list[Any]]:
            one = client.get_kv_state_async(running.id, "last", 5)
            many = client.get_kv_states_async(running.id, "last", [5, KEYS])
            return await one, await many

        one, (same, nothing) = asyncio.run(ask())
        assert one.value() % KEYS == same.value() % KEYS == 5
        assert nothing is None


def test_query_command_shows_stored_values_and_errors(
    cluster: ThreadedCluster,
    client: QueryableStateClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = on(cluster)
    texts = numbers(env, 3).map(lambda n: (str(n), n), Types.TUPLE([Types.STRING(), Types.LONG()]))
    texts.key_by(lambda pair: pair[0]).as_queryable_state("last")
    monkeypatch.setenv("RAY_ADDRESS", "threaded:1")

    def query(job_id: object, *arguments: str) -> tuple[int, str, str]:
        def connect(*_: object) -> Any:
            return nullcontext(cluster.client)

        code = execute(["query", str(job_id), *arguments], connect=connect)
        return code, *capsys.readouterr()

    with Running(cluster, env) as running:
        until(lambda: client.get_kv_state(running.id, "last", "3"))
        shown = query(running.id, "last", '"3"', "text")
        assert shown == (0, "'3': ('3', 3)\n'text': -\n", "")
        code, _, error = query(running.id, "last", "text")
        assert (code, "holds nothing for this key" in error) == (1, True)
        code, _, error = query(running.id, "nope", "3")
        assert (code, "UnknownKvStateLocation" in error) == (1, True)
    code, _, error = query(running.id, "last", "3")
    assert (code, "Could not find Flink job" in error) == (4, True)


def test_two_queryable_states_of_one_name_fail_the_job(
    cluster: ThreadedCluster, client: QueryableStateClient
) -> None:
    """QS-02."""
    env = on(cluster, 1)
    stream = numbers(env)
    by_key(stream).as_queryable_state("totals", total())
    stream.key_by(lambda n: n % 3).as_queryable_state("totals", total())
    job_id = env.execute_async("twice").get_job_id()
    job = cluster.client.job(str(job_id))
    with pytest.raises(
        JobExecutionError,
        match="KvState with name 'totals' has already been registered by another operator",
    ):
        job.result()
    assert job.details().restarts == 0


def test_list_state_descriptor_for_a_queryable_stream_is_refused(cluster: ThreadedCluster) -> None:
    stream = by_key(numbers(on(cluster)))
    with pytest.raises(StreamError, match="a stream is no list state"):
        stream.as_queryable_state("all", ListStateDescriptor("all"))


def test_queryable_stream_returns_its_name_and_its_state_descriptor(
    cluster: ThreadedCluster,
) -> None:
    queryable = by_key(numbers(on(cluster))).as_queryable_state("last").uid("last")
    assert queryable.get_queryable_state_name() == "last"
    assert isinstance(queryable.get_state_descriptor(), ValueStateDescriptor)


# --- while it moves -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TaskProcess", "TaskExecutor", "JobMaster", "Dispatcher"])
def test_queried_state_never_falls_behind_the_last_checkpoint_after_a_failure(
    kind: str, cluster: ThreadedCluster, client: QueryableStateClient, tmp_path: Path
) -> None:
    """Totals grow. A failure takes them back to the last checkpoint, never to nothing."""
    checkpoints = tmp_path / "checkpoints"
    env = on(cluster)
    env.configure(Configuration.from_dict(settings(checkpoints)))
    descriptor = count()
    counts = numbers(env).map(lambda n: (n % KEYS, 1))
    keyed = counts.key_by(lambda pair: pair[0], key_type=Types.LONG())
    keyed.process(Count()).print()
    with Running(cluster, env) as running:

        def read() -> list[int]:
            states = client.get_kv_states(running.id, "count", range(KEYS), descriptor)
            return [0 if state is None else state.get() for state in states]

        until(read, lambda found: all(found))
        for _ in range(2):
            before = newest(checkpoints)
            least = read()
            # a checkpoint that begins after that has at least these
            wait_until(partial(has_come, checkpoints, before + 2), 300, "checkpoints")
            last = read()
            for _ in range(5):
                found = read()
                assert all(one <= other for one, other in zip(last, found, strict=True))
                last = found
            cluster.crash(kind)
            for _ in range(20):
                found = read()
                assert all(one <= other for one, other in zip(least, found, strict=True))
            until(read, partial(is_above, last))


def has_come(checkpoints: Path, checkpoint_id: int) -> bool:
    return newest(checkpoints) > checkpoint_id


def is_above(least: list[int], found: list[int]) -> bool:
    return all(one > other for one, other in zip(found, least, strict=True))


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = count()
        descriptor.set_queryable("count")
        self._count = runtime_context.get_reducing_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._count.add(value[1])
