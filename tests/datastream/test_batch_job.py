"""DataStream programs as stages of batch jobs, between stages of Python tasks; with Spark:
tests/system/test_mixed_jobs.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest

import flinkray
from flinkray.core.errors import ConfigurationError, JobExecutionError
from flinkray.datastream import (
    DataStream,
    MapFunction,
    Row,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.batch_job import Stage
from flinkray.datastream.common import RestartStrategies
from flinkray.datastream.connectors.file_system import Encoder, FileSink
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from flinkray.user_code import UserCodeError
from tests.datastream.conftest import TWO_SLOTS
from tests.datastream.threads import none_left

Rows = list[dict[str, object]]
Batches = Iterator[pa.RecordBatch]
NUMBERS = range(1000)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(storage: Path) -> Iterator[ThreadedCluster]:
    with none_left(), threaded_cluster(str(storage), configuration=TWO_SLOTS) as cluster:
        yield cluster


def numbers() -> Batches:
    """In two row groups, so that two tasks have something to read."""
    for part in (NUMBERS[:500], NUMBERS[500:]):
        yield pa.RecordBatch.from_pydict({"n": list(part), "rest": [n % 7 for n in part]})


def written_to(path: Path) -> Callable[[Batches], None]:
    """A stage that keeps what it reads."""

    def write(batches: Batches) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        path.write_text(json.dumps(rows))

    return write


def run(cluster: ThreadedCluster, job: flinkray.BatchJob, stage: Stage, path: Path) -> Rows:
    job.python(written_to(path), inputs=[stage])
    assert cluster.client.submit(job.build()).wait(timeout=300) is flinkray.JobStatus.FINISHED
    rows: Rows = json.loads(path.read_text())
    return rows


SUMS = [{"rest": rest, "total": sum(n for n in NUMBERS if n % 7 == rest)} for rest in range(7)]


def sums_of(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    """Of the numbers with the same rest."""
    return (
        numbers.key_by(lambda row: row["rest"])
        .reduce(lambda a, b: {"rest": a["rest"], "n": a["n"] + b["n"]})
        .map(lambda row: {"rest": row["rest"], "total": row["n"]})
    )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_stream_program_reads_a_python_stage_and_gives_rows_to_the_job(
    cluster: ThreadedCluster, tmp_path: Path, parallelism: int
) -> None:
    job = flinkray.BatchJob("sums")
    read = job.python(numbers)
    sums = job.stream(sums_of, inputs=[read], parallelism=parallelism)
    rows = run(cluster, job, sums, tmp_path / "out")
    assert sorted(rows, key=lambda row: str(row["rest"])) == SUMS


def test_stream_program_reads_and_returns_columns(cluster: ThreadedCluster, tmp_path: Path) -> None:
    def doubled(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
        return numbers.map_batches(
            lambda batch: pa.RecordBatch.from_pydict({"twice": [2 * n.as_py() for n in batch["n"]]})
        )

    job = flinkray.BatchJob("columns")
    rows = run(cluster, job, job.stream(doubled, inputs=[job.python(numbers)]), tmp_path / "out")
    assert rows == [{"twice": 2 * n} for n in NUMBERS]


def test_python_stage_reads_several_results_one_of_them_twice(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    def few() -> Batches:
        yield pa.RecordBatch.from_pydict({"few": [1, 2]})

    def counted(*inputs: Batches) -> Batches:
        counts = [[batch.num_rows for batch in batches] for batches in inputs]
        yield pa.RecordBatch.from_pydict({"rows": [sum(batches) for batches in counts]})

    job = flinkray.BatchJob("several inputs")
    read = job.python(numbers)
    stage = job.python(counted, inputs=[read, job.python(few), read])
    assert run(cluster, job, stage, tmp_path / "out") == [
        {"rows": 1000},
        {"rows": 2},
        {"rows": 1000},
    ]


def test_result_without_rows_has_the_declared_columns(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    names = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
    columns = tmp_path / "columns"

    def nothing(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
        return numbers.flat_map(lambda row: iter(()), names)

    def columns_of(batches: Batches) -> None:
        for batch in batches:
            columns.write_text(str(batch.schema.names))

    job = flinkray.BatchJob("no rows")
    empty = job.stream(nothing, inputs=[job.python(numbers)])
    job.python(columns_of, inputs=[empty])
    assert run(cluster, job, empty, tmp_path / "out") == []


def test_stream_program_may_read_a_stage_twice_and_end_in_a_sink(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    def joined(
        env: StreamExecutionEnvironment, left: DataStream, right: DataStream, again: DataStream
    ) -> None:
        every = left.union(right, again).map(lambda row: row["n"], Types.LONG())
        texts = every.key_by(lambda n: n).reduce(max).map(str, Types.STRING())
        texts.sink_to(
            FileSink.for_row_format(str(tmp_path / "text"), Encoder.simple_string_encoder()).build()
        )

    def some() -> Batches:
        yield pa.RecordBatch.from_pydict({"n": [-1, -2]})

    job = flinkray.BatchJob("ends in a sink")
    read = job.python(numbers)
    job.stream(joined, inputs=[read, job.python(some), read], parallelism=2)
    assert cluster.client.submit(job.build()).wait(timeout=300) is flinkray.JobStatus.FINISHED
    files = [file for file in (tmp_path / "text").rglob("*") if file.is_file()]
    lines = [line for file in files for line in file.read_text().split()]
    assert sorted(map(int, lines)) == [-2, -1, *NUMBERS]


def test_stream_program_may_add_sources_of_its_own(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    def only_own(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection([-1, -2], Types.LONG()).map(lambda n: {"n": n})

    def with_own(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
        more = env.from_collection([-3]).map(lambda n: {"n": n})
        return numbers.map(lambda row: {"n": row["n"]}).union(more)

    job = flinkray.BatchJob("own sources", flinkray.NoRestart())
    few = job.stream(only_own)
    every = job.stream(with_own, inputs=[few], parallelism=2)
    rows = run(cluster, job, every, tmp_path / "out")
    assert sorted(str(row["n"]) for row in rows) == ["-1", "-2", "-3"]


def test_program_function_may_be_used_for_two_consecutive_stages_of_a_job(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    def plus_one(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
        return numbers.map(lambda row: {"n": row["n"] + 1})

    job = flinkray.BatchJob("one after the other")
    once = job.stream(plus_one, inputs=[job.python(numbers)])
    twice = job.stream(plus_one, inputs=[once])
    assert run(cluster, job, twice, tmp_path / "out") == [{"n": n + 2} for n in NUMBERS]


def test_lost_files_of_a_stage_are_produced_again(
    cluster: ThreadedCluster, storage: Path, tmp_path: Path
) -> None:
    """FO-04."""
    lost = tmp_path / "lost"

    def loses(numbers: Batches) -> Batches:
        """Removes the files when it has read them, once."""
        count = sum(batch.num_rows for batch in numbers)
        if not lost.exists():
            for file in storage.rglob("results/*/*/*.parquet"):
                file.unlink()
            lost.touch()
        yield pa.RecordBatch.from_pydict({"n": [count]})

    class Late(MapFunction[Row, dict[str, object]]):
        def open(self, runtime_context: RuntimeContext) -> None:
            """Before anything is read."""
            wait_until(lost.exists, 150, "the files to be gone")

        def map(self, value: Row) -> dict[str, object]:
            return {"n": value["n"]}

    def both(env: StreamExecutionEnvironment, left: DataStream, right: DataStream) -> DataStream:
        return left.map(Late()).union(right.map(lambda row: {"n": row["n"]}))

    job = flinkray.BatchJob("lost", flinkray.FixedDelayRestart(3, 0.01))
    read = job.python(numbers, name="numbers")
    handle_of_both = job.stream(both, inputs=[read, job.python(loses, inputs=[read])])
    job.python(written_to(tmp_path / "out"), inputs=[handle_of_both])
    handle = cluster.client.submit(job.build())
    assert handle.wait(timeout=300) is flinkray.JobStatus.FINISHED
    rows = json.loads((tmp_path / "out").read_text())
    assert sorted(row["n"] for row in rows) == [*NUMBERS, 1000]
    (producer,) = (v for v in handle.details().vertices if v.name == "numbers")
    assert [e.attempt_number for e in producer.executions] == [1]


def test_failing_stream_stage_gives_no_rows_to_the_next_stage(
    cluster: ThreadedCluster, storage: Path
) -> None:
    def fails(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
        return numbers.map(lambda row: {"n": 1 // (999 - row["n"])})

    job = flinkray.BatchJob("fails", flinkray.NoRestart())
    job.python(
        written_to(storage / "never"), inputs=[job.stream(fails, inputs=[job.python(numbers)])]
    )
    handle = cluster.client.submit(job.build())
    assert handle.wait(timeout=300) is flinkray.JobStatus.FAILED
    assert "ZeroDivisionError" in handle.exceptions()[0].text
    assert not (storage / "never").exists()


def other_columns(numbers: Batches) -> Batches:
    """Yields ``a`` and ``b``, or ``a`` and ``c`` for the second half of the numbers."""
    for batch in numbers:
        name = "b" if batch["n"][0].as_py() == 0 else "c"
        yield pa.RecordBatch.from_arrays(batch.columns, names=["a", name])


def twice_a(numbers: Batches) -> Batches:
    for batch in numbers:
        yield pa.RecordBatch.from_arrays(batch.columns, names=["a", "a"])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            other_columns,
            r"other_columns \(1/2\)#0 has written a: int64, b: int64, "
            r"and other_columns \(2/2\)#0 has written a: int64, c: int64",
        ),
        (twice_a, r"(?s)several columns of the name 'a', of .*in operator 'twice_a', subtask"),
    ],
)
def test_stage_with_columns_that_no_stage_can_read_fails_and_is_named(
    cluster: ThreadedCluster, tmp_path: Path, function: Callable[..., Batches], text: str
) -> None:
    job = flinkray.BatchJob("columns", flinkray.NoRestart())
    stage = job.python(function, inputs=[job.python(numbers)], parallelism=2)
    job.python(written_to(tmp_path / "out"), inputs=[stage])
    with pytest.raises(JobExecutionError, match=text):
        cluster.client.submit(job.build()).result(300)


def keeps(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    return numbers


def forgets_to_return(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.map(lambda row: row)


def returns_rows(env: StreamExecutionEnvironment, numbers: DataStream) -> Rows:
    return []


def of_another(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    return StreamExecutionEnvironment().from_collection([1])


def restarts(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
    return numbers


def streams(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    return numbers


def executes(env: StreamExecutionEnvironment, numbers: DataStream) -> DataStream:
    numbers.print()
    env.execute()
    return numbers


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (forgets_to_return, ConfigurationError, "'forgets_to_return' returned None and ends in no"),
        (returns_rows, ConfigurationError, r"'returns_rows' returned \[\]: a program returns"),
        (of_another, ConfigurationError, "'of_another' returned a stream of another environment"),
        (restarts, ConfigurationError, "'restarts' sets restart-strategy.*belongs to the whole"),
        (streams, ConfigurationError, "'streams' sets the runtime mode STREAMING"),
        (executes, OperatorError, "the rows of 'numbers' are there while its batch job runs"),
    ],
)
def test_function_that_cannot_be_a_stream_stage_is_refused_with_the_reason(
    program: Callable[..., DataStream], error: type[Exception], text: str
) -> None:
    job = flinkray.BatchJob("refused")
    with pytest.raises(error, match=text):
        job.stream(program, inputs=[job.python(numbers)])


READ = flinkray.BatchJob("reads").python(numbers)


async def awaited(*inputs: Batches) -> Batches:
    raise AssertionError("is not called")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"function": awaited}, "'awaited' .*awaited is `async def`"),
        ({"function": keeps}, "'keeps' takes an iterator .*, of which there are 0: .* 'env'"),
        ({"inputs": READ}, "the inputs of 'numbers' are a list of stages.*, not Stage"),
        ({"inputs": ["read"]}, r"the inputs of 'numbers' are a list of stages.*, not \['read'\]"),
        ({"inputs": [READ]}, "'numbers' reads 'numbers', a stage of another job"),
        ({"parallelism": "2"}, r"the parallelism of 'numbers' is a whole number \(int\), got '2'"),
        ({"parallelism": 0}, "the parallelism of 'numbers' must be at least 1, got 0"),
        ({"memory": "much"}, "memory='much': not a memory size"),
    ],
)
def test_argument_that_a_python_stage_cannot_have_is_refused_at_once(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        flinkray.BatchJob("refused").python(**{"function": numbers, **arguments})


@pytest.mark.parametrize("kind", ["spark", "python"])
def test_unpicklable_function_of_a_stage_is_refused_with_advice_for_functions(kind: str) -> None:
    lock = Lock()

    def locked(*inputs: object) -> None:
        lock.acquire()

    with pytest.raises(UserCodeError, match=r"locked .* variable 'lock' .*inside of the function"):
        getattr(flinkray.BatchJob("refused"), kind)(locked)


@pytest.mark.parametrize("kind", ["spark", "stream"])
def test_parallelism_0_of_any_kind_of_stage_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match="the parallelism of 'keeps' must be at least 1"):
        getattr(flinkray.BatchJob("refused"), kind)(keeps, parallelism=0)


def test_stream_stage_whose_result_nobody_reads_is_refused() -> None:
    job = flinkray.BatchJob("refused")
    job.stream(keeps, inputs=[job.python(numbers)])
    with pytest.raises(ConfigurationError, match="nobody reads the result of 'keeps'"):
        job.build()


def test_result_of_a_stage_whose_program_ends_in_sinks_cannot_be_read() -> None:
    def prints(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
        numbers.print()

    job = flinkray.BatchJob("refused")
    printed = job.stream(prints, inputs=[job.python(numbers)])
    with pytest.raises(ConfigurationError, match="reads 'prints', whose program returned None"):
        job.stream(keeps, inputs=[printed])
