"""What becomes of programs on a cluster when something dies, fails, is cancelled or is too slow."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkray.client.stream_results import ResultsLostError
from flinkray.core.errors import JobCancelledError, JobExecutionError
from flinkray.datastream import (
    Configuration,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Duration, RestartStrategies
from flinkray.datastream.common.watermark_strategy import TimestampAssigner
from flinkray.datastream.connectors import DiscardingSink, FileSource
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.collection import NumberSequenceSource
from flinkray.streaming.sources.source import EnumeratorContext
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.stuck_functions import CountingTo, FailingAt, OneAtATime, StuckAt

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "task.cancellation.interval": "50 ms",
    "cluster.registration.error-delay": "5 ms",
}


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(2)


def totals(env: StreamExecutionEnvironment, *functions: Any) -> Any:
    """Results come at the very end, when nothing can fail any more: a batch sums it up."""
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    numbers = env.from_sequence(1, 1000)
    for function in functions:
        numbers = numbers.map(function)
    pairs = numbers.map(lambda v: (v % 3, v))
    return pairs.key_by(lambda v: v[0]).sum(1).execute_and_collect()


EXPECTED = {(r, sum(v for v in range(1, 1001) if v % 3 == r)) for r in range(3)}


@pytest.mark.parametrize("kind", ["TaskProcess", "TaskExecutor"])
def test_program_starts_from_the_beginning_when_its_processes_die(
    kind: str, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """FO-01: each record is there once. Two sources are stuck, each in its own process."""
    markers = tmp_path / "first", tmp_path / "last"
    results = totals(on(own_cluster), StuckAt(1, markers[0]), StuckAt(1000, markers[1]))
    wait_until(lambda: all(marker.exists() for marker in markers), 150, "two tasks to be stuck")
    own_cluster.crash_all(kind)
    assert set(results) == EXPECTED
    (job,) = own_cluster.client.list_jobs()
    assert own_cluster.client.job(job.job_id).details().restarts >= 1


def test_program_starts_from_the_beginning_when_a_function_fails(
    own_cluster: ThreadedCluster,
) -> None:
    assert set(totals(on(own_cluster), FailingAt(500))) == EXPECTED


def test_socket_source_connects_again_after_a_failure(own_cluster: ThreadedCluster) -> None:
    """The reader has the split when the checkpoint is taken, so the split is in the checkpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        env = on(own_cluster)
        env.enable_checkpointing(20)
        lines = env.socket_text_stream(*server.getsockname())
        results = lines.map(FailingAt("fail")).execute_and_collect()
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"one\n")
            assert next(results) == "one"  # a checkpoint is complete
            connection.sendall(b"fail\n")
            again, _ = server.accept()
        with again:
            again.sendall(b"two\n")
        assert list(results) == ["two"]
    (job,) = own_cluster.client.list_jobs()
    assert own_cluster.client.job(job.job_id).details().restarts == 1


def test_client_that_has_read_results_fails_when_a_restart_would_repeat_them(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    marker = tmp_path / "stuck"
    env = on(own_cluster).set_parallelism(1)
    results = env.from_sequence(1, 100_000).map(StuckAt(50_000, marker)).execute_and_collect()
    assert next(results) == 1
    wait_until(marker.exists, 150, "the task to be stuck")
    own_cluster.crash("TaskProcess")
    with pytest.raises(ResultsLostError, match="restarted after some of its results"):
        for _ in results:
            pass
    results.close()


def test_the_job_fails_with_the_cause_when_restarts_are_used_up(
    own_cluster: ThreadedCluster,
) -> None:
    env = on(own_cluster)
    env.from_sequence(1, 1000).rebalance().map(FailingAt(500, attempts=9)).rebalance().print()
    with pytest.raises(JobExecutionError, match=r"(?s)Traceback.*ValueError: record 500"):
        env.execute()


def test_a_program_can_set_its_own_restart_strategy(own_cluster: ThreadedCluster) -> None:
    settings = Configuration().set_string("restart-strategy.type", "none")
    env = on(own_cluster).configure(settings)
    env.from_sequence(1, 1000).map(FailingAt(500)).sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError, match="record 500"):
        env.execute()


def test_restart_strategy_of_set_restart_strategy_overrides_that_of_the_cluster(
    own_cluster: ThreadedCluster,
) -> None:
    """The strategy of the cluster allows two restarts."""
    env = on(own_cluster).set_restart_strategy(
        RestartStrategies.failure_rate_restart(3, 60_000, 10)
    )
    env.from_sequence(1, 1000).map(FailingAt(500, attempts=3)).sink_to(DiscardingSink())
    result = env.execute()
    assert own_cluster.client.job(result.get_job_id()).details().restarts == 3


def test_program_stuck_in_user_code_is_cancelled_on_a_local_cluster(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The task process ends with the job and need not be killed, which would happen after 180 s."""
    marker = tmp_path / "stuck"
    env = on(own_cluster)
    env.from_sequence(1, 1000).rebalance().map(StuckAt(500, marker)).sink_to(DiscardingSink())
    client = env.execute_async()
    wait_until(marker.exists, 150, "a task to be stuck")
    client.cancel().result(300)
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(300)


def standing_still(counted: Path) -> int:
    """The number in the file, once it does not change any more."""
    counts: list[int] = []

    def stands_still() -> bool:
        counts.append(int.from_bytes(counted.read_bytes(), "big"))
        return counts[-1] > 0 and len(counts) > 20 and len(set(counts[-20:])) == 1

    wait_until(stands_still, 300, "the program to wait")
    return counts[-1]


class Thousandths(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value) * 1000


def test_source_waits_for_a_slower_source_of_its_alignment_group(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    counted, gate = tmp_path / "count", tmp_path / "gate"
    counted.write_bytes(bytes(8))
    env = on(own_cluster).set_parallelism(1)
    env.get_config().set_auto_watermark_interval(5)
    strategy = (
        WatermarkStrategy.for_monotonous_timestamps()
        .with_timestamp_assigner(Thousandths())
        .with_watermark_alignment("group", Duration.of_millis(500), Duration.of_millis(5))
    )
    slow = env.from_source(OneAtATime(2, gate), strategy, "slow")
    fast = env.from_source(OneAtATime(100_000), strategy, "fast").map(CountingTo(counted))
    results = slow.union(fast).execute_and_collect()
    assert standing_still(counted) < 100_000
    gate.touch()
    assert len(list(results)) == 100_002


def test_program_whose_results_the_client_does_not_read_waits_with_bounded_memory(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    counted = tmp_path / "count"
    counted.write_bytes(bytes(8))
    env = on(own_cluster).set_parallelism(1)
    records = env.from_sequence(1, 10**9).map(lambda v: bytes(1000)).map(CountingTo(counted))
    with records.rebalance().map(lambda v: v).execute_and_collect() as results:
        next(results)
        count = standing_still(counted)
        assert count * 1000 < 32 * 2**20
        for _ in range(count + 1):
            next(results)


FOR_EVER = {
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}


def for_ever(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    """Restarted without end, as jobs with checkpoints are."""
    settings = Configuration()
    for key, value in FOR_EVER.items():
        settings.set_string(key, value)
    return on(cluster).configure(settings).enable_checkpointing(60_000)


def test_key_column_that_does_not_exist_ends_the_job_and_is_named(
    own_cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    env = for_ever(own_cluster)
    rows = env.from_collection([{"number": n} for n in range(100)])
    rows.key_by(lambda row: row["nummer"]).map(lambda row: row).sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError, match=r"(?s)KeyError: 'nummer'.*not restarted any more"):
        env.execute("numbers")
    (job,) = own_cluster.client.list_jobs()
    assert own_cluster.client.job(job.job_id).details().restarts == 2
    warned = [r.getMessage() for r in caplog.records if "(numbers): restart" in r.getMessage()]
    assert [("restart 1," in text, "KeyError: 'nummer'" in text) for text in warned] == [
        (True, True),
        (False, True),
    ]


class ClosedDoor(NumberSequenceSource):
    """Its enumerator raises an error of the tree."""

    def create_enumerator(self, context: EnumeratorContext[Any], clock: Any) -> Any:
        raise StreamError("there is no table orders")


def test_enumerator_that_finds_no_table_ends_the_job_without_restart(
    own_cluster: ThreadedCluster,
) -> None:
    env = for_ever(own_cluster)
    source = ClosedDoor(1, 100)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
    numbers.sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError, match="there is no table orders"):
        env.execute()
    (job,) = own_cluster.client.list_jobs()
    assert own_cluster.client.job(job.job_id).details().restarts == 0


def write_json(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_text(text)


def no_folder(folder: Path) -> None:
    """Not yet."""


def half_a_record(folder: Path) -> None:
    write_json(folder, '{"n": 1}\n{"n": ')


@pytest.mark.parametrize("before", [no_folder, half_a_record])
def test_file_that_is_complete_after_some_restarts_is_read(
    before: Callable[[Path], None],
    own_cluster: ThreadedCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After more restarts than any other error is allowed."""
    folder = tmp_path / "folder"
    before(folder)
    env = for_ever(own_cluster)
    source = FileSource(folder, file_format="json")
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "files")
    with records.execute_and_collect() as results:
        wait_until(lambda: "(restart 4)" in caplog.text, 300.0, "the fourth restart")
        write_json(folder, '{"n": 1}\n{"n": 2}\n')
        assert sorted(record["n"] for record in results) == [1, 2]


@pytest.mark.parametrize("before", [no_folder, half_a_record])
def test_file_that_stays_incomplete_ends_the_job(
    before: Callable[[Path], None], own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    before(tmp_path / "folder")
    settings = Configuration()
    settings.set_string("restart-strategy.patience-with-files", "500 ms")
    env = for_ever(own_cluster).configure(settings)
    source = FileSource(tmp_path / "folder", file_format="json")
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "files")
    records.sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError, match="not restarted any more"):
        env.execute()
    (job,) = own_cluster.client.list_jobs()
    assert own_cluster.client.job(job.job_id).details().restarts >= 2
