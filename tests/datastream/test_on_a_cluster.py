"""Programs in the slots of a cluster: tasks in threads of their own, channels between them.

The cluster is a MiniCluster; tests/system has some of this on Ray.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flinkray
from flinkray.client.job_files import JobFileError
from flinkray.core.errors import JobCancelledError, JobExecutionError
from flinkray.datastream import (
    BroadcastProcessFunction,
    CloseableIterator,
    DataStream,
    KeyedBatchFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.arrays import running_sums
from flinkray.datastream.common import Configuration, JobStatus, Time
from flinkray.datastream.common.watermark_strategy import TimestampAssigner
from flinkray.datastream.connectors import DiscardingSink, FixedSplitsEnumerator, IteratorSource
from flinkray.datastream.state import ArrayStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.conftest import TWO_SLOTS


def local() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(2)


# --- the same programs, here and there ------------------------------------------------------------


class Second(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Second())
EVENTS = [(key, time) for time in range(0, 100, 3) for key in "abcde"]
LATE: OutputTag[tuple[str, Any]] = OutputTag("odd")


class Counting(KeyedProcessFunction[Any, Any, Any]):
    """How many of its key came, and at the end how many there were."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        ctx.timer_service().register_event_time_timer(1000)
        yield value[0], count

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


class Odd(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[1] % 2:
            yield LATE, ("odd", value)
        else:
            yield ("even", value)


class Pairing(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left, right


class Known(BroadcastProcessFunction[Any, Any, Any]):
    rules: MapStateDescriptor[str, bool] = MapStateDescriptor("rules")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[1]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(self.rules).put(value, True)
        yield f"rule {value}"


def sums(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection(EVENTS).key_by(lambda v: v[0]).sum(1)


def keyed_state(env: StreamExecutionEnvironment) -> DataStream:
    events = env.from_collection(EVENTS).assign_timestamps_and_watermarks(IN_ORDER)
    return events.key_by(lambda v: v[0]).process(Counting())


def event_time_windows(env: StreamExecutionEnvironment) -> DataStream:
    events = env.from_collection(EVENTS).assign_timestamps_and_watermarks(IN_ORDER)
    windows = events.key_by(lambda v: v[0]).window(
        TumblingEventTimeWindows.of(Time.milliseconds(10))
    )
    return windows.reduce(lambda one, other: (one[0], one[1] + other[1]))


def side_outputs(env: StreamExecutionEnvironment) -> DataStream:
    even = env.from_collection(EVENTS).rebalance().process(Odd())
    return even.union(even.get_side_output(LATE))


def interval_join(env: StreamExecutionEnvironment) -> DataStream:
    def keyed() -> KeyedStream:
        stream = env.from_collection(EVENTS).assign_timestamps_and_watermarks(IN_ORDER)
        return stream.key_by(lambda v: v[0])

    return (
        keyed()
        .interval_join(keyed())
        .between(Time.milliseconds(-3), Time.milliseconds(3))
        .process(Pairing())
    )


def broadcast_state(env: StreamExecutionEnvironment) -> DataStream:
    rules = env.from_collection(["x", "y"]).broadcast(Known.rules)
    return env.from_collection(EVENTS).rebalance().connect(rules).process(Known())


def unions(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_sequence(1, 50).union(env.from_sequence(51, 100), env.from_collection([0]))


def stamped_or_not(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stamped = env.from_sequence(1, 500).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ByValue())
    )
    both = env.from_sequence(1, 500).union(stamped).map(lambda v: v)
    return both.rebalance().map(lambda v: v)


class ByValue(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


def rescaling(env: StreamExecutionEnvironment) -> DataStream:
    wide = env.from_sequence(1, 100).rescale().map(lambda v: v + 1).set_parallelism(4)
    return wide.rescale().map(lambda v: v * 2).set_parallelism(1)


def shuffling(env: StreamExecutionEnvironment) -> DataStream:
    shuffled = env.from_sequence(1, 100).shuffle().map(lambda v: v + 1).set_parallelism(3)
    return shuffled.map(lambda v: -v)


def custom_partitioning(env: StreamExecutionEnvironment) -> DataStream:
    parted = env.from_sequence(1, 100).partition_custom(lambda key, n: key % n, lambda v: v)
    return parted.map(SubtaskOf())


class SubtaskOf(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return self.subtask, value


class SumAtTheEnd(KeyedBatchFunction):
    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_array_state(ArrayStateDescriptor("sums", "int64"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        running_sums(ctx.slots, batch["v"].to_numpy(), self.sums.values)

    def on_watermark(self, timestamp: int, ctx: Any) -> Any:
        return pa.record_batch({"k": list(ctx.keys), "sum": self.sums.values})


def keyed_batches(env: StreamExecutionEnvironment) -> DataStream:
    table = pa.table({"k": ["a", "b", "a", "c"] * 25, "v": range(100)})
    return env.from_arrow(table, batch_rows=7).key_by("k").process_batches(SumAtTheEnd())


class Grouped(Counting, KeyedGroupFunction[Any, Any, Any]):
    """Each of a key's records with how many of it came until then."""

    def process_group(self, key: Any, values: list[Any], ctx: Any) -> Iterator[Any]:
        for value in values:
            yield from self.process_element(value, ctx)


def keyed_groups(env: StreamExecutionEnvironment) -> DataStream:
    events = env.from_collection(EVENTS).assign_timestamps_and_watermarks(IN_ORDER)
    return events.key_by(lambda v: v[0]).process_groups(Grouped())


def forwarding(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_sequence(1, 100).map(lambda v: v + 1).disable_chaining().map(lambda v: -v)


def batch_sums(env: StreamExecutionEnvironment) -> DataStream:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    return sums(env)


def batch_sums_of_columns(env: StreamExecutionEnvironment) -> DataStream:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    table = pa.table({"k": ["a", "b", "a", "c"] * 25, "v": range(100)})
    return env.from_arrow(table, batch_rows=7).rebalance().key_by("k").sum("v")


def batch_state(env: StreamExecutionEnvironment) -> DataStream:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    return keyed_state(env)


class Price(BroadcastProcessFunction[Any, Any, Any]):
    prices: MapStateDescriptor[int, int] = MapStateDescriptor("prices")

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.get_broadcast_state(self.prices).get(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(self.prices).put(value, 10 * value)


def batch_broadcast_state(env: StreamExecutionEnvironment) -> DataStream:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    prices = env.from_sequence(1, 5_000).broadcast(Price.prices)
    return env.from_sequence(1, 5_000).connect(prices).process(Price())


def test_batch_mode_reads_the_broadcast_side_first(cluster: ThreadedCluster) -> None:
    priced = sorted(batch_broadcast_state(on(cluster)).execute_and_collect())
    assert priced == [(number, 10 * number) for number in range(1, 5_001)]


PROGRAMS = [
    sums,
    keyed_state,
    event_time_windows,
    side_outputs,
    interval_join,
    broadcast_state,
    unions,
    rescaling,
    shuffling,
    custom_partitioning,
    keyed_batches,
    keyed_groups,
    forwarding,
    batch_sums,
    batch_sums_of_columns,
    batch_state,
    batch_broadcast_state,
    stamped_or_not,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_gives_the_same_results_on_a_cluster_as_in_one_process(
    program: Callable[[StreamExecutionEnvironment], DataStream], cluster: ThreadedCluster
) -> None:
    here, there = (program(env).execute_and_collect() for env in (local(), on(cluster)))
    expected = Counter(here)
    assert expected
    assert Counter(there) == expected


# --- what is different on a cluster ---------------------------------------------------------------


def test_the_error_of_a_function_begins_with_its_traceback(cluster: ThreadedCluster) -> None:
    env = on(cluster)
    env.from_collection([2, 1, 0]).map(lambda v: 1 // v).name("divide").print()
    with pytest.raises(JobExecutionError, match="failed: Traceback") as failed:
        env.execute("divides")
    text = str(failed.value)
    assert "ZeroDivisionError" in text
    package = str(Path(flinkray.__file__).parent)
    assert package not in text.partition("ZeroDivisionError")[0], "only the user's own frames"
    assert "in operator 'divide', subtask" in text
    assert "on record 0" in text


def test_an_operator_that_cannot_be_sent_is_named_at_submission(cluster: ThreadedCluster) -> None:
    env, lock = on(cluster), threading.Lock()
    env.from_collection([1]).map(lambda v: (v, lock)).name("locked").print()
    with pytest.raises(StreamError, match=r"'locked' cannot be sent .*lock"):
        env.execute()


class Unwilling:
    def __reduce__(self) -> Any:
        raise LookupError("not to be pickled")


@pytest.mark.parametrize("env_of", [lambda _: local(), on], ids=["here", "there"])
def test_any_error_while_pickling_an_operator_is_reported_with_its_name(
    cluster: ThreadedCluster, env_of: Callable[[ThreadedCluster], StreamExecutionEnvironment]
) -> None:
    env, unwilling = env_of(cluster), Unwilling()
    env.from_collection([1]).map(lambda v: (v, unwilling)).name("unwilling").print()
    told = "'unwilling' cannot be sent .* LookupError: not to be pickled"
    with pytest.raises(StreamError, match=told) as refused:
        env.execute()
    assert isinstance(refused.value.__cause__, LookupError)


@pytest.mark.parametrize("env_of", [lambda _: local(), on], ids=["here", "there"])
@pytest.mark.parametrize("what", ["environment", "stream"])
def test_function_that_refers_to_its_environment_or_stream_is_refused(
    cluster: ThreadedCluster,
    env_of: Callable[[ThreadedCluster], StreamExecutionEnvironment],
    what: str,
) -> None:
    env = env_of(cluster)
    stream = env.from_collection([1])
    held = env if what == "environment" else stream
    stream.map(lambda v: (v, held)).name("holding").print()
    told = "'holding' cannot be sent .* cannot pickle a StreamExecutionEnvironment: it and its"
    with pytest.raises(StreamError, match=told):
        env.execute()


def test_two_runs_of_one_program_in_one_task_process_have_separate_results(
    tmp_path: Path,
) -> None:
    """Equal vertex ids would give the tasks equal attempt ids."""
    one_process = {**TWO_SLOTS, "taskmanager.slots-per-task-process": "2"}
    with threaded_cluster(str(tmp_path), configuration=one_process) as cluster:

        def run(last: int) -> CloseableIterator:
            numbers = on(cluster).set_parallelism(1).from_sequence(1, last)
            results = numbers.map(lambda v: v).execute_and_collect()
            assert isinstance(results, CloseableIterator)
            return results

        with run(20_000) as one, run(30_000) as other:
            first = next(one), next(other)  # both run
            assert first == (1, 1)
            assert (sum(1 for _ in one), sum(1 for _ in other)) == (19_999, 29_999)


def test_functions_can_read_files_that_were_registered_as_cached_files(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("to be")
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "one.txt").write_text("or not")
    for env in (local(), on(cluster)):
        env.register_cached_file(str(words), "words")
        env.register_cached_file(str(folder), "folder", executable=True)
        found = env.from_collection([1]).map(Reading()).execute_and_collect(limit=1)
        assert found == [("to be", "or not")]


class Reading(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        cache = runtime_context.get_distributed_cache()
        self.words = Path(cache.get_file("words")).read_text()
        self.more = Path(cache.get_file("folder"), "one.txt").read_text()

    def map(self, value: Any) -> Any:
        return self.words, self.more


class ReadingArchives(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        cache = runtime_context.get_distributed_cache()
        self.words = Path(cache.get_file("data/words"), "words.txt").read_text()
        self.more = Path(cache.get_file("more.zip"), "inner", "one.txt").read_text()

    def map(self, value: Any) -> Any:
        return self.words, self.more


def packed(path: Path, **files: str) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_", "/") + ".txt", text)
    return str(path)


def test_functions_can_read_the_unpacked_files_of_python_archives(
    cluster: ThreadedCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = packed(tmp_path / "words.zip", words="to be")
    more = packed(tmp_path / "more.zip", inner_one="or not")
    for env in (local(), on(cluster)):
        env.add_python_archive(words, "data/words")
        env.configure(Configuration().set_string("python.archives", more))
        found = env.from_collection([1]).map(ReadingArchives()).execute_and_collect(limit=1)
        assert found == [("to be", "or not")]
    assert "is not in the working directory of functions, as on a cluster" in caplog.text


@pytest.mark.parametrize("target", ["/data", "../data", "a/../../b"])
def test_an_archive_is_not_unpacked_outside_of_the_working_directory(target: str) -> None:
    with pytest.raises(ValueError, match="inside of the working directory of tasks, not in"):
        local().add_python_archive(__file__, target)


def test_file_that_is_no_archive_is_refused_by_add_python_archive(tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_text("no archive")
    with pytest.raises(JobFileError, match=r"data\.zip cannot be sent .*: it is no zip or tar"):
        local().add_python_archive(str(tmp_path / "data.zip"))
    with pytest.raises(JobFileError, match=r"cannot be sent .*: it is no zip or tar"):
        local().add_python_archive(str(tmp_path))


def test_registered_files_are_removed_when_the_job_has_finished(
    cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both copies: that of the coordinator of the sources and that of the task process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = tmp_path / "words.txt"
    words.write_text("to be")
    env = on(cluster).set_parallelism(1)
    env.register_cached_file(str(words), "words")
    seen = env.from_collection([1]).map(CountingCopies()).execute_and_collect(limit=1)
    assert seen == [2], "the copies of the coordinator and of the task process"
    wait_until(lambda: not [*tmp_path.glob("flinkray-files-*")], 100, "both to be removed")


class CountingCopies(MapFunction[Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.words = Path(runtime_context.get_distributed_cache().get_file("words"))

    def map(self, value: Any) -> Any:
        return len([*self.words.parents[2].glob("flinkray-files-*")])


def test_reading_an_unregistered_cached_file_raises_an_error_with_its_name(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("")
    for env in (local(), on(cluster)):
        env.register_cached_file(str(tmp_path / "other.txt"), "other")
        env.from_collection([1]).map(Reading()).print()
        with pytest.raises(
            (OperatorError, JobExecutionError),
            match="no file is registered as 'words', known are: 'other'",
        ):
            env.execute()


Add = Callable[[StreamExecutionEnvironment, str], object]
BRING_ALONG: list[Add] = [
    lambda env, path: env.register_cached_file(path, "words"),
    lambda env, path: env.add_python_file(path),
    lambda env, path: env.configure(Configuration().set_string("python.files", path)),
    lambda env, path: env.add_python_archive(path),
]


@pytest.mark.parametrize(
    "add",
    [
        *BRING_ALONG,
        lambda env, path: env.configure(Configuration().set_string("python.archives", path)),
        lambda env, path: env.set_python_requirements(path),
        lambda env, path: env.set_python_requirements(__file__, path),
    ],
)
def test_missing_file_is_refused_by_the_call_that_adds_it_to_the_program(add: Add) -> None:
    with pytest.raises(
        JobFileError, match=r"no/such/module\.py cannot be sent along .*: No such file or directory"
    ):
        add(local(), "no/such/module.py")


@pytest.mark.parametrize("add", BRING_ALONG)
def test_file_deleted_before_submission_is_refused_by_the_client(
    add: Add, cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    archive = packed(tmp_path / "words.zip", words="to be")
    env = on(cluster)
    add(env, archive)
    Path(archive).unlink()
    env.from_collection([1]).print()
    with pytest.raises(JobFileError, match=r"words\.zip cannot be sent along"):
        env.execute()


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda env: env.set_python_requirements(__file__), "install the packages"),
        (lambda env: env.set_python_executable("python3"), "the interpreter of the cluster's Ray"),
    ],
)
def test_setting_that_clusters_do_not_support_is_refused_with_an_alternative(
    call: Callable[[StreamExecutionEnvironment], None],
    instead: str,
    cluster: ThreadedCluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = on(cluster)
    call(env)
    env.from_collection([1]).print()
    with pytest.raises(StreamError, match=instead) as refusal:
        env.execute()
    assert caplog.messages[0] == str(refusal.value)


@pytest.mark.parametrize("env_of", [lambda _: local(), on], ids=["here", "there"])
def test_function_that_calls_sys_exit_fails_the_program_with_its_operator(
    env_of: Callable[[ThreadedCluster], StreamExecutionEnvironment], cluster: ThreadedCluster
) -> None:
    env = env_of(cluster)
    env.from_collection([7]).map(lambda v: sys.exit(v)).name("leaves").print()
    with pytest.raises(
        (OperatorError, JobExecutionError), match="SystemExit: 7\nin operator 'leaves'"
    ):
        env.execute()


class NoWay(FixedSplitsEnumerator[int]):
    def start(self) -> None:
        raise LookupError("no way to the queue")


class Unreachable(IteratorSource):
    def create_enumerator(self, context: Any, clock: Any) -> Any:
        return NoWay(context, [0])


@pytest.mark.parametrize("env_of", [lambda _: local(), on], ids=["here", "there"])
def test_enumerator_error_shows_only_user_frames_and_names_the_source(
    env_of: Callable[[ThreadedCluster], StreamExecutionEnvironment], cluster: ThreadedCluster
) -> None:
    env = env_of(cluster)
    env.from_source(Unreachable(lambda split, offset: iter([1])), None, "queue").print()
    with pytest.raises((OperatorError, JobExecutionError)) as failed:
        env.execute()
    text = str(failed.value)
    assert text.count("  File ") == 1
    assert "in start" in text
    assert "LookupError: no way to the queue\nin operator 'enumerator of Source: queue" in text
    assert "subtask" not in text


class OddError(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt


ODD: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exits": (lambda: SystemExit(3), "SystemExit: 3"),
    "half a surrogate pair": (lambda: ValueError("\udc80"), r"ValueError: \udc80"),
    "cannot be shown": (OddError, "OddError"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("when", ["start", "next_discovery_time"])
def test_any_exception_of_an_enumerator_fails_the_program_with_its_cause(
    when: str, odd: str, cluster: ThreadedCluster
) -> None:
    make, cause = ODD[odd]

    def fails(self: Any) -> Any:
        raise make()

    class Odd(FixedSplitsEnumerator[int]):
        pass

    setattr(Odd, when, fails)

    class OddSource(IteratorSource):
        def create_enumerator(self, context: Any, clock: Any) -> Any:
            return Odd(context, [0])

    env = on(cluster)
    env.from_source(OddSource(lambda split, offset: iter([1])), None, "queue").print()
    with pytest.raises(JobExecutionError) as failed:
        env.execute()
    assert cause in str(failed.value)
    assert "in operator 'enumerator of Source: queue" in str(failed.value)


def test_job_client_returns_the_status_and_cancels_the_job(cluster: ThreadedCluster) -> None:
    env = on(cluster)
    env.from_sequence(1, 10**12).map(lambda v: v).sink_to(DiscardingSink())
    client = env.execute_async("endless")
    assert not client.get_job_status().result(300).is_terminal_state()
    client.cancel().result(300)
    assert client.get_job_status().result(300) is JobStatus.CANCELED
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(300)
