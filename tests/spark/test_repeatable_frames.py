"""Which DataFrames have the same partitions whenever they are computed, what tells two apart, and
how Spark reads what streams have written; asked of Spark itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from flinkray.file_results import Epoch, MicroBatch, MicroBatchColumnsError, PublishedBatches
from flinkray.spark.inputs import parquet_reader
from flinkray.spark.micro_batches import EpochsToBatches, StreamedFrame, publish_stream
from flinkray.spark.publishing import fingerprint, is_repeatable, publish
from flinkray.spark.result import InvalidStageResultError
from tests.local_spark import spark

__all__ = ["spark"]

pytestmark = pytest.mark.spark

Make = Callable[[SparkSession], DataFrame]
ADAPTIVE = "spark.sql.adaptive.enabled"
SORTS = "spark.sql.execution.sortBeforeRepartition"
ZONE = "spark.sql.session.timeZone"


@pytest.fixture(autouse=True)
def as_by_default(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SORTS, "false")  # so that "dealt out" depends on the order
    yield
    spark.conf.unset(ADAPTIVE)
    spark.conf.unset(SORTS)
    spark.conf.unset(ZONE)


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, 1, 5).selectExpr("id", "id % 7 as key")


def numbered(spark: SparkSession) -> DataFrame:
    """Rows of one number are in whichever order the shuffle has brought them."""
    by = "row_number() OVER (PARTITION BY key ORDER BY id % 2) AS n"
    return numbers(spark).selectExpr("id", "key", by)


ALWAYS: dict[str, Make] = {
    "a range": numbers,
    "rows of a filter": lambda spark: numbers(spark).where("key > 3"),
    "a seeded sample": lambda spark: numbers(spark).sample(0.5, 3),
    "beside a broadcast": lambda spark: numbers(spark).join(numbers(spark).hint("broadcast"), "id"),
}
WITHOUT_ADAPTION: dict[str, Make] = {
    "groups": lambda spark: numbers(spark).groupBy("key").count(),
    "by a hash": lambda spark: numbers(spark).repartition(3, "key"),
    "the last of each group": lambda spark: numbered(spark).where("n = 1"),
    "a join": lambda spark: numbers(spark).hint("merge").join(numbers(spark), "id"),
    "groups of a sample": lambda spark: numbers(spark).sample(0.5, 3).groupBy("key").count(),
}
NEVER: dict[str, Make] = {
    "a sort": lambda spark: numbers(spark).orderBy("key"),
    "by ranges": lambda spark: numbers(spark).repartitionByRange(3, "id"),
    "behind a sort": lambda spark: numbers(spark).orderBy("key").where("id > 3"),
    "random numbers": lambda spark: numbers(spark).selectExpr("id", "rand() as r"),
    "names": lambda spark: numbers(spark).selectExpr("uuid() as name"),
    "numbers of rows": lambda spark: numbers(spark).selectExpr("monotonically_increasing_id()"),
    "dealt out": lambda spark: numbers(spark).groupBy("key").count().repartition(3),
    "of values": lambda spark: spark.createDataFrame([(1,), (2,)], "n long"),
    "of values in SQL": lambda spark: spark.sql("SELECT * FROM VALUES (1), (2)"),
    "kept": lambda spark: numbers(spark).limit(10).cache(),
    "behind what is kept": lambda spark: numbers(spark).cache().where("key > 3"),
    "computed before": lambda spark: numbers(spark).sample(0.5).localCheckpoint(),
    "some rows": lambda spark: numbers(spark).limit(10),
    "when it was computed": lambda spark: numbers(spark).selectExpr("id", "now() as at"),
    "of today": lambda spark: numbers(spark).where("year(current_date()) > id"),
    "groups of the last ones": lambda spark: numbered(spark).where("n = 1").groupBy("id").count(),
    "groups of a sample of groups": lambda spark: (
        numbers(spark).groupBy("key").count().sample(0.5, 3).groupBy("count").count()
    ),
    "one of each": lambda spark: numbers(spark).dropDuplicates(["key"]),
}


def cases() -> list[object]:
    return [
        pytest.param(make, adaptive, expected, id=f"{name}, {'' if adaptive else 'not '}adaptive")
        for expected, adaptive, makes in (
            (True, True, ALWAYS),
            (True, False, {**ALWAYS, **WITHOUT_ADAPTION}),
            (False, True, {**WITHOUT_ADAPTION, **NEVER}),
            (False, False, NEVER),
        )
        for name, make in makes.items()
    ]


@pytest.mark.parametrize(("make", "adaptive", "expected"), cases())
def test_partitions_are_the_same_or_wait_for_the_last_one(
    spark: SparkSession, make: Make, adaptive: bool, expected: bool
) -> None:
    spark.conf.set(ADAPTIVE, str(adaptive).lower())
    assert is_repeatable(make(spark)) is expected


def test_bounds_of_a_sort_are_others_the_next_time(spark: SparkSession, tmp_path: Path) -> None:
    """Why a sort is not repeatable, although its rows are."""
    spark.conf.set(ADAPTIVE, "false")

    def sizes(folder: Path) -> list[int]:
        rows = spark.range(0, 100_000, 1, 4).selectExpr("hash(id) as h").repartitionByRange(3, "h")
        rows.write.parquet(str(folder))
        return [pq.read_metadata(file).num_rows for file in sorted(folder.glob("*.parquet"))]

    first, second = sizes(tmp_path / "first"), sizes(tmp_path / "second")
    assert sum(first) == sum(second) == 100_000
    assert first != second


def test_a_fingerprint_is_that_of_plan_seeds_input_and_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbers(spark).write.parquet(f"{tmp_path}/one")
    numbers(spark).write.parquet(f"{tmp_path}/other")
    frames: list[Make] = [
        numbers,
        lambda spark: numbers(spark).where("key > 3"),
        lambda spark: numbers(spark).where("key > 4"),
        lambda spark: numbers(spark).sample(0.5, 3),
        lambda spark: numbers(spark).sample(0.5, 4),
        lambda spark: numbers(spark).withColumnRenamed("key", "k"),
        lambda spark: spark.range(0, 1000, 1, 6).selectExpr("id", "id % 7 as key"),
        lambda spark: spark.read.parquet(f"{tmp_path}/one"),
        lambda spark: spark.read.parquet(f"{tmp_path}/other"),
        lambda spark: spark.range(1).selectExpr(*(f"{n} as c{n}" for n in range(60))),
        lambda spark: spark.range(1).selectExpr(*(f"{n} as c{n}" for n in range(59)), "7 as c59"),
    ]
    first = [fingerprint(make(spark)) for make in frames]
    assert len({*first}) == len(frames)
    assert [fingerprint(make(spark)) for make in frames] == first
    spark.conf.set(ZONE, "Asia/Kolkata")
    assert fingerprint(numbers(spark)) not in first


def test_a_file_that_was_written_anew_is_another_input(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"

    def written(*numbers: int) -> str:
        pq.write_table(pa.table({"n": numbers}), path)
        return fingerprint(spark.read.parquet(str(path)))

    first = written(1, 2, 3)
    pq.read_table(path)
    assert fingerprint(spark.read.parquet(str(path))) == first
    assert written(1, 2, 4) != first


def test_dates_of_an_epoch_are_what_they_were_however_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By default Spark 3.5 refuses files that do not say which calendar their writer had."""
    rows = {
        "day": [date(1, 1, 1), date(1500, 2, 28)],
        "at": [
            datetime(1, 1, 1, 12, tzinfo=timezone.utc),
            datetime(1899, 1, 1, tzinfo=timezone.utc),
        ],
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    read = parquet_reader(spark)(str(tmp_path / "rows.parquet"))
    texts = read.selectExpr("string(day) as day", "string(at) as at")
    texts.write.parquet(str(tmp_path / "texts"))
    found = pq.read_table(tmp_path / "texts").to_pylist()
    assert [row["day"] for row in found] == ["0001-01-01", "1500-02-28"]
    assert [row["at"][:4] for row in found] == ["0001", "1899"]


# --- DataFrames that are not what is read ---------------------------------------------------------


def rates(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_a_streaming_dataframe_is_refused_where_a_bounded_one_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidStageResultError, match="from_spark reads bounded ones: call from_s"):
        publish(rates(spark), str(tmp_path), "attempt")
    taker = EpochsToBatches(str(tmp_path), "1", threading.Event())
    with pytest.raises(InvalidStageResultError, match="through_spark makes a bounded one"):
        taker.take(rates(spark), Epoch(3, ()))


def test_a_bounded_dataframe_is_refused_where_a_streaming_one_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = StreamedFrame(numbers(spark), {"once": True}, "append")
    with pytest.raises(InvalidStageResultError, match="from_spark_stream reads streaming ones"):
        publish_stream(frame, str(tmp_path), "1", threading.Event())


def test_other_columns_than_those_of_the_checkpoint_before_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = PublishedBatches(str(tmp_path))
    batches.begin(numbers(spark).schema.simpleString())
    batches.publish(MicroBatch(0, (), origin=2))
    taker = EpochsToBatches(str(tmp_path), "1", threading.Event())
    assert not taker.is_taken(Epoch(3, ()))
    other = numbers(spark).selectExpr("id", "string(key) as key")
    with pytest.raises(MicroBatchColumnsError, match=r"key:bigint.*key:string"):
        taker.take(other, Epoch(3, ()))


def test_a_query_whose_output_mode_does_not_fit_it_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = StreamedFrame(rates(spark).groupBy("value").count(), {"once": True}, "append")
    with pytest.raises(AnalysisException, match=r"(?i)append.*output mode.*not supported"):
        publish_stream(frame, str(tmp_path), "1", threading.Event())
