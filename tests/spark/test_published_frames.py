"""What Spark's executors publish of a DataFrame, and of the micro-batches of a query, if attempts
at their tasks fail, and drivers die; computed by Spark itself."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from flinkray.core import private_files
from flinkray.file_results import MicroBatch, PublishedBatches, PublishedPartition
from flinkray.file_results import PublishedPartitions as Partitions
from flinkray.spark import publishing
from flinkray.spark.micro_batches import StreamedFrame, publish_stream
from flinkray.spark.publishing import publish, written_partitions
from tests.local_spark import spark

__all__ = ["spark"]

pytestmark = [
    pytest.mark.spark,
    # PySpark 3.5 compares pandas' version with the long deprecated distutils.
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    # It leaves the sockets of what it collects to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SCHEMA = pa.schema([("id", pa.int64())])


def test_partition_of_a_dataframe_can_be_read_before_its_last_one_is_computed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = publishing._write

    def waits(
        location: str, schema: pa.Schema, number: int, batches: Iterable[pa.RecordBatch]
    ) -> PublishedPartition:
        """In the second partition, until the first one is there."""
        give_up_at = time.monotonic() + 30
        while number and not list(tmp_path.glob("*/000000-1-*.accepted")):
            assert time.monotonic() < give_up_at, "the first partition is not there"
            time.sleep(0.05)
        return write(location, schema, number, batches)

    monkeypatch.setattr(publishing, "_write", waits)
    assert publish(spark.range(0, 2, 1, 2), str(tmp_path), "attempt").num_rows == 2
    publication = Partitions(str(tmp_path)).publication()
    assert publication is not None
    assert publication.rows == {0: 1, 1: 1}
    assert len(Partitions(str(tmp_path)).list(publication)) == 2


@pytest.mark.parametrize("who", [private_files.OWNER, private_files.GROUP])
def test_published_files_have_the_file_modes_of_the_cluster(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Python workers of executors learn the modes from ``spark.executorEnv``."""
    monkeypatch.setattr(spark.sparkContext, "environment", private_files.variables(who))
    monkeypatch.setenv(*next(iter(private_files.variables(who).items())))
    publish(spark.range(0, 2, 1, 2), str(tmp_path / "published"), "attempt")
    expected = (0o640, 0o750) if who == private_files.GROUP else (0o600, 0o700)
    paths = list((tmp_path / "published").rglob("*"))
    assert len(paths) > 3
    assert {(path.name, stat.S_IMODE(path.stat().st_mode)) for path in paths} == {
        (path.name, expected[path.is_dir()]) for path in paths
    }


def test_next_attempt_computes_only_partitions_that_the_dead_attempt_did_not_publish(
    spark: SparkSession, tmp_path: Path
) -> None:
    publish(spark.range(0, 30, 1, 12), str(tmp_path / "before"), "attempt")
    before = Partitions(str(tmp_path / "before")).publication()
    assert before is not None
    # as if the attempt had died before it sealed the publication
    for note in (tmp_path / "before").glob("*.publication*"):
        note.unlink()
    Partitions(str(tmp_path / "before")).begin(before.publication_id, before.division)
    files = tmp_path / "before" / before.publication_id
    for file in files.glob("000003-*"):
        file.unlink()
    there = {*files.iterdir()}

    assert publish(spark.range(0, 30, 1, 12), str(tmp_path / "before"), "next").num_rows == 30

    assert {file.name[:7] for file in {*files.iterdir()} - there} == {"000003-"}


def test_rows_written_by_a_failed_spark_task_attempt_are_not_in_the_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path)

    def write(number: int, batches: Iterable[pa.RecordBatch]) -> PublishedPartition:
        from pyspark import TaskContext

        written = Partitions(location).write("a", number, SCHEMA, batches)
        context = TaskContext.get()
        assert context is not None
        if number == 1 and not context.attemptNumber():
            raise ValueError("the first attempt fails when it has written all")
        return written

    told: list[PublishedPartition] = []
    frame = spark.range(0, 30, 1, 3)
    written = written_partitions(frame, write, on_written=told.append)
    assert len(list(tmp_path.glob("a/*.arrow"))) == 4
    assert [one.number for one in written] == [0, 1, 2]
    assert sorted(told, key=lambda one: one.number) == written


def test_column_names_with_dots_backticks_and_equal_letters_are_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    sql = "SELECT id AS `a.b`, 2 AS v, 3 AS V, struct(id AS `x.y`) AS `c``d` FROM range(0, 1, 1, 1)"
    publish(spark.sql(sql), str(tmp_path), "attempt")
    published = Partitions(str(tmp_path))
    publication = published.publication()
    assert publication is not None
    (one,) = published.list(publication).values()
    rows = published.open(publication.publication_id, one.name).read_all().to_pylist()
    assert rows == [{"a.b": 0, "v": 2, "V": 3, "c`d": {"x.y": 0}}]


# --- micro-batches --------------------------------------------------------------------------------


def windows(spark: SparkSession, folder: Path) -> DataFrame:
    """Each is closed when a later row has come."""
    rows = spark.readStream.schema("at timestamp").json(str(folder))
    by_time = rows.withWatermark("at", "0 seconds").groupBy(functions.window("at", "10 seconds"))
    return by_time.count().selectExpr("string(window.start) as start", "count")


def rows_of(location: Path, below: int | None = None) -> list[dict[str, Any]]:
    batches = PublishedBatches(str(location))
    last = batches.progress().batches if below is None else below
    found = [batches.batch(number) for number in range(last)]
    names = [one.name for batch in found if batch is not None for one in batch.partitions]
    return [row for name in names for row in batches.open(name).read_all().to_pylist()]


def test_micro_batch_published_as_the_driver_died_still_advances_the_watermark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has no note of the published batch: the batch is computed again and closes the
    windows."""
    (tmp_path / "rows").mkdir()
    times = ("00:00:01", "00:00:02", "00:00:25")
    lines = "\n".join(f'{{"at": "2026-01-01 {time}"}}' for time in times)
    (tmp_path / "rows" / "1.json").write_text(lines)
    frame = StreamedFrame(windows(spark, tmp_path / "rows"), {"availableNow": True}, "append")
    location, publish_batch = tmp_path / "published", PublishedBatches.publish

    def publish_and_die(self: PublishedBatches, batch: MicroBatch) -> None:
        publish_batch(self, batch)
        raise OSError("the driver dies")

    with monkeypatch.context() as dying:
        dying.setattr(PublishedBatches, "publish", publish_and_die)
        with pytest.raises(OSError, match="the driver dies"):
            publish_stream(frame, str(location), "1", threading.Event())
    assert rows_of(location) == []

    publish_stream(frame, str(location), "1", threading.Event())

    assert rows_of(location) == [{"start": "2026-01-01 00:00:00", "count": 2}]
    assert PublishedBatches(str(location)).ended("1") is not None


def distinct(spark: SparkSession, folder: Path) -> DataFrame:
    """Of Spark's state each value that has come before."""
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.dropDuplicates(["n"])


@pytest.fixture(scope="module")
def queried(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query whose micro-batches were published, one for each of twelve files with two rows."""
    folder = tmp_path_factory.mktemp("queried")
    (folder / "rows").mkdir()
    for number in range(12):
        content = f'{{"n": {number}}}\n{{"n": {number + 1}}}'
        (folder / "rows" / f"{number:02d}.json").write_text(content)
    spark.conf.set("spark.sql.streaming.fileSource.log.cleanupDelay", "1ms")
    frame = StreamedFrame(distinct(spark, folder / "rows"), {"availableNow": True}, "append")
    publish_stream(frame, str(folder / "published"), "1", threading.Event())
    assert PublishedBatches(str(folder / "published")).progress().batches == 12
    return folder


@pytest.mark.parametrize("cut", [0, 1, 4, 11, 12])
def test_query_continues_in_another_job_after_the_savepoints_micro_batch(
    spark: SparkSession, queried: Path, tmp_path: Path, cut: int
) -> None:
    """Each row is read exactly once, before or after the savepoint, also if the log of the
    source was compacted since."""
    batches, other = PublishedBatches(str(queried / "published")), tmp_path / "another-job"
    before = [row["n"] for row in rows_of(queried / "published", cut)]
    again = PublishedBatches(str(other))
    again.query.restore(batches.query.pieces(cut))
    again.go_on_after(cut)
    (queried / "rows" / "late.json").write_text('{"n": 1}\n{"n": 1000}')

    frame = StreamedFrame(distinct(spark, queried / "rows"), {"availableNow": True}, "append")
    publish_stream(frame, str(other), "1", threading.Event(), goes_on=True)

    after = [row["n"] for row in rows_of(other)]
    assert sorted(before + after) == [*range(13), 1000]


def pairs(spark: SparkSession, folder: Path) -> DataFrame:
    """Of all rows with the same number, each with each: two sources, and four stores of state."""

    def rows() -> DataFrame:
        return spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder))

    return rows().join(rows().withColumnRenamed("n", "m"), functions.expr("n = m"))


def test_rocksdb_state_is_restored_in_another_job_and_only_its_files_are_copied(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    for number in range(5):
        (tmp_path / "rows" / f"{number}.json").write_text(f'{{"n": {number % 2}}}')
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, f"{_STATE}.RocksDBStateStoreProvider")
    one, other = PublishedBatches(str(tmp_path / "one")), PublishedBatches(str(tmp_path / "other"))

    def run(published: PublishedBatches, *, goes_on: bool) -> None:
        frame = StreamedFrame(pairs(spark, tmp_path / "rows"), {"availableNow": True}, "append")
        publish_stream(frame, published.location, "1", threading.Event(), goes_on=goes_on)

    try:
        run(one, goes_on=False)
        other.go_on_after(other.query.restore(one.query.pieces(3)))
        copied = {path.name for path in Path(other.query.location).rglob("*.sst")}
        assert copied < {path.name for path in Path(one.query.location).rglob("*.sst")}
        (tmp_path / "rows" / "5.json").write_text('{"n": 1}')
        run(other, goes_on=True)
    finally:
        spark.conf.unset(provider)
    found = rows_of(Path(one.location), 3) + rows_of(Path(other.location))
    assert sorted(row["n"] for row in found) == [0] * 9 + [1] * 9


_STATE = "org.apache.spark.sql.execution.streaming.state"
