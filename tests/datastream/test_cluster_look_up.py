"""Records that look rows up on a cluster, where what has ended is not executed again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flinkray.client import JobHandle
from flinkray.core.errors import FlinkRayError, JobExecutionError
from flinkray.datastream import (
    Configuration,
    DataStream,
    JobClient,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row
from flinkray.datastream.connected_streams import looked_up
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.state_reader import SavepointReader
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.kept_results import Kept
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import newest, settings
from tests.datastream.trickling import Trickle

CONFIGURATION = QUICK_RESTARTS

READ: set[int] = set()
"""Numbers that were read where a test wants to know."""
KEYS = 10
"""Of the records; every second one has a row."""
ANSWER = Types.TUPLE([Types.LONG(), Types.STRING()])


def on(
    cluster: ThreadedCluster, checkpoints: Path, parallelism: int = 2, savepoint: str = ""
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    more = {"execution.state-recovery.path": savepoint}
    env.configure(Configuration.from_dict({**settings(checkpoints), **more}))
    return env.set_parallelism(parallelism)


def parts(keys: Iterable[int]) -> list[list[Any]]:
    """For two subtasks; the second row of each is held back by a gate."""
    rows = [Row(key=float(key), name=f"row {key}") for key in keys]
    return [rows[::2], rows[1::2]]


def names(
    env: StreamExecutionEnvironment,
    count: int,
    rate: float,
    table: Trickle,
    generate: Callable[[int], int] = lambda n: n,
) -> DataStream:
    source: DataGeneratorSource = DataGeneratorSource(generate, count, rate)
    none = WatermarkStrategy.no_watermarks()
    numbers = env.from_source(source, none, "numbers", Types.LONG()).uid("numbers")
    rows = env.from_source(table, None, "table").set_parallelism(2).uid("table")

    def named(number: int, row: Any) -> Any:
        return number, row and row["name"]

    keyed, by_key = numbers.key_by(lambda n: n % KEYS), rows.key_by("key")
    return looked_up(keyed, by_key, named, "names", ANSWER).uid("look up")


def expected(count: int) -> list[Any]:
    return [(n, f"row {n % KEYS}" if n % KEYS % 2 == 0 else None) for n in range(count)]


def wait_for_checkpoint(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 150, "a checkpoint")


def test_look_up_state_is_rescaled_and_the_table_is_read_once(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """One savepoint while records wait, and one when the tasks that read the table have ended."""
    count, savepoints, gate = 12_000, str(tmp_path / "savepoints"), tmp_path / "gate"
    path = ""
    for run, parallelism in enumerate((2, 4)):
        checkpoints = tmp_path / f"checkpoints-{run}"
        env = on(cluster, checkpoints, parallelism, path)
        table = Trickle(parts(range(0, KEYS, 2)), gate=gate, held=1)
        kept(names(env, count, 400.0, table)).print()
        client = env.execute_async()
        if run == 1:
            gate.touch()
            read = partial(has_read_table, cluster.client.job(client.get_job_id()))
            wait_until(read, 150, "the end of the table")
        has_come = partial(is_kept, client, savepoints, rows=(2, 5)[run], waiting=run == 0)
        wait_until(has_come, 300, "rows and records")
        path = client.stop_with_savepoint(False, savepoints).result(300)
    env = on(cluster, tmp_path / "checkpoints-2", 1, path)
    results = kept(names(env, count, 12_000.0, Trickle(parts(range(0, KEYS, 2)))))
    by_key = list(results.execute_and_collect())
    assert sorted(answer for answers in by_key for answer in answers) == expected(count)


def kept(answers: DataStream) -> DataStream:
    return answers.key_by(lambda answer: answer[0] % KEYS).process(Kept()).uid("kept")


def is_kept(client: JobClient, savepoints: str, rows: int, waiting: bool) -> bool:
    """Whether so many rows are state now, and whether some or no records wait."""
    savepoint = SavepointReader(client.trigger_savepoint(savepoints).result(300))
    keys = {entry.key for entry in savepoint.keyed_entries("look up", "_table")}
    waits = list(savepoint.keyed_entries("look up", "_waiting"))
    return len(keys) == rows and bool(waits) is waiting


def has_read_table(job: JobHandle) -> bool:
    """The job has no vertices until it begins."""
    reading = [it for it in job.details().vertices if it.name == "Source: table"]
    return [it.tasks.get("FINISHED") for it in reading] == [2]


def test_stop_with_drain_is_refused_before_the_look_up_table_is_completely_read(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Records would be answered from a part of the table; the job runs on instead."""
    count, gate = 500, tmp_path / "gate"
    env = on(cluster, tmp_path / "checkpoints")
    table = Trickle(parts(range(0, KEYS, 2)), gate=gate, held=1)
    table.is_needed_whole = True
    results: Any = names(env, count, 1_000.0, table).execute_and_collect()
    wait_for_checkpoint(tmp_path / "checkpoints")
    job = cluster.client.job(results.job_id)
    with pytest.raises(FlinkRayError):
        job.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True, timeout=300)
    assert any("of a table to look up not all has been read" in it.text for it in job.exceptions())
    gate.touch()
    assert sorted(results) == expected(count)


def noted(number: int) -> int:
    # the function has come by value, the test has the module
    importlib.import_module("tests.datastream.test_cluster_look_up").READ.add(number)
    return number


def test_stream_is_not_read_while_too_many_records_wait_for_the_table(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Also after a failure. The table is read and checkpoints are taken meanwhile."""
    count, gate, checkpoints = 3_000, tmp_path / "gate", tmp_path / "checkpoints"
    READ.clear()
    env = on(cluster, checkpoints)
    env.configure(Configuration.from_dict({"execution.spark.max-waiting-records": "20"}))
    table = Trickle(parts(range(0, KEYS, 2)), gate=gate, held=1)
    results: Any = names(env, count, 300.0, table, noted).execute_and_collect()
    for death in (None, "TaskProcess"):
        if death is not None:
            cluster.crash(death)
        wait_until_read_no_more(checkpoints)
        assert len(READ) < count
    gate.touch()
    assert sorted(results) == expected(count)


def wait_until_read_no_more(checkpoints: Path) -> None:
    """Until many checkpoints are complete without another number."""
    seen, begin = 0, newest(checkpoints)

    def is_still() -> bool:
        nonlocal seen, begin
        now = newest(checkpoints)
        if len(READ) != seen or not seen:
            seen, begin = len(READ), now
        return now >= begin + 5

    wait_until(is_still, 300, "checkpoints without numbers")


def test_two_table_rows_of_one_key_fail_the_job_without_restart(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    env = on(cluster, tmp_path / "checkpoints")
    names(env, 100, 1_000.0, Trickle(parts([2, 4, 2]))).print()
    client = env.execute_async()
    with pytest.raises(JobExecutionError) as caught:
        client.get_job_execution_result().result(300)
    assert "the table 'names' has several rows of the key 2.0" in caught.value.text
    assert cluster.client.job(client.get_job_id()).details().restarts == 0
