"""Which DataFrames have the same partitions whenever they are computed, what tells two apart, and
how Spark reads what streams have written; asked of Spark itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions

from flinkray.file_results import (
    Epoch,
    MicroBatch,
    MicroBatchColumnsError,
    NonDeterministicSourceError,
    PublishedBatches,
    PublishedPartitions,
)
from flinkray.spark.inputs import parquet_reader
from flinkray.spark.micro_batches import EpochsToBatches, StreamedFrame, publish_stream
from flinkray.spark.publishing import publish
from flinkray.spark.repeatable_plans import (
    division_before,
    fingerprint,
    fixed_division,
    is_repeatable,
)
from flinkray.spark.result import InvalidStageResultError
from flinkray.streaming.sources.spark import SparkEnumerator
from flinkray.testing.manual_clock import ManualClock
from tests.local_spark import spark
from tests.streaming.sources.reading import Readers

__all__ = ["spark"]

pytestmark = [
    pytest.mark.spark,
    # PySpark 3.5 compares pandas' version with the long deprecated distutils.
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    # It leaves the sockets of what it collects to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

Make = Callable[[SparkSession], DataFrame]
ADAPTIVE = "spark.sql.adaptive.enabled"
SORTS = "spark.sql.execution.sortBeforeRepartition"
ZONE = "spark.sql.session.timeZone"
PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
SETTINGS = (ADAPTIVE, SORTS, ZONE, PARALLELISM, "spark.sql.ansi.enabled")


@pytest.fixture(autouse=True)
def as_by_default(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SORTS, "false")  # so that "dealt out" depends on the order
    yield
    spark.catalog.clearCache()  # else Spark takes what one test keeps for rows of the next
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.fixture(scope="module", autouse=True)
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Views of files."""
    folder = tmp_path_factory.mktemp("tables")
    columns = ("id", "id % 7 as key", "id * 0.5D as f", "string(id) as s")
    many = spark.range(0, 1000, 1, 5).selectExpr(*columns, "timestamp_millis(id) as at")
    many.write.parquet(f"{folder}/many")
    spark.range(50).selectExpr("id", "id % 7 as key").write.parquet(f"{folder}/few")
    for name in ("many", "few"):
        spark.read.parquet(f"{folder}/{name}").createOrReplaceTempView(name)


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, 1, 5).selectExpr("id", "id % 7 as key")


def numbered(spark: SparkSession) -> DataFrame:
    """Rows of one number are in whichever order the shuffle has brought them."""
    by = "row_number() OVER (PARTITION BY key ORDER BY id % 2) AS n"
    return numbers(spark).selectExpr("id", "key", by)


def sql(text: str) -> Make:
    return lambda spark: spark.sql(text)


def of_many(*columns: str) -> Make:
    return lambda spark: spark.table("many").selectExpr(*columns)


def by_key(aggregate: str) -> Make:
    return sql(f"SELECT key, {aggregate} AS a FROM many GROUP BY key")


def plus_one(spark: SparkSession) -> DataFrame:
    return numbers(spark).select(functions.udf(lambda n: n + 1, "long")("id"))


def of_partitions(spark: SparkSession) -> DataFrame:
    return numbers(spark).mapInArrow(lambda batches: batches, "id long, key long")


def of_rdd(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,)], 2), "n long")


def of_newest(spark: SparkSession, side: str = "broadcast") -> DataFrame:
    newest = numbered(spark).where("n = 1").withColumnRenamed("id", "v")
    return numbers(spark).join(newest.hint(side), "key")


ALWAYS: dict[str, Make] = {
    "a range": numbers,
    "files": of_many("*"),
    "rows of a filter": lambda spark: numbers(spark).where("key > 3"),
    "expressions": of_many(
        "upper(s) AS u",
        "date_format(at, 'yyyy') AS y",
        "CASE WHEN id > 3 THEN s ELSE 'a' END AS c",
        "coalesce(s, 'b') AS k",
        "round(f, 1) AS r",
        "from_json(s, 'a int') AS j",
        "transform(array(id), x -> x + 1) AS t",
        "cast(s AS double) / 2 AS d",
        "explode(array(1, 2)) AS e",
    ),
    "windows of time": lambda spark: spark.table("many").select(functions.window("at", "1 second")),
    "a seeded sample": lambda spark: numbers(spark).sample(0.5, 3),
    "beside a broadcast": lambda spark: numbers(spark).join(numbers(spark).hint("broadcast"), "id"),
    "beside counts": sql(
        "SELECT /*+ BROADCAST(c) */ * FROM many JOIN "
        "(SELECT key, count(*) AS n FROM few GROUP BY key) c USING (key)"
    ),
    "all of two": sql("SELECT id FROM many UNION ALL SELECT id FROM few"),
    "greater than one value": sql("SELECT * FROM many WHERE id > (SELECT max(id) FROM few)"),
    "in a table": sql("SELECT * FROM many WHERE id IN (SELECT id FROM few)"),
    "not in a table": sql("SELECT * FROM many WHERE id NOT IN (SELECT id FROM few)"),
    "that exist": sql("SELECT * FROM many m WHERE EXISTS (SELECT 1 FROM few WHERE few.id = m.id)"),
    "of values in SQL": sql("SELECT * FROM VALUES (1), (2)"),
}
WITHOUT_ADAPTION: dict[str, Make] = {
    "groups": lambda spark: numbers(spark).groupBy("key").count(),
    "commutative aggregates": by_key(
        "struct(sum(id), min(at), max(s), count(DISTINCT id), bit_or(id), approx_count_distinct(s))"
    ),
    "of each key": sql("SELECT DISTINCT key FROM many"),
    "by a hash": lambda spark: numbers(spark).repartition(3, "key"),
    "a join": lambda spark: numbers(spark).hint("merge").join(numbers(spark), "id"),
    "a join of hashes": lambda spark: (
        numbers(spark).hint("shuffle_hash").join(numbers(spark), "id", "left")
    ),
    "groups of a sample": lambda spark: numbers(spark).sample(0.5, 3).groupBy("key").count(),
    "dealt out in order": lambda spark: numbers(spark).repartition(3),
    "without some": sql("SELECT id FROM many EXCEPT ALL SELECT id FROM few"),
}
NEVER: dict[str, Make] = {
    "a sort": lambda spark: numbers(spark).orderBy("key"),
    "by ranges": lambda spark: numbers(spark).repartitionByRange(3, "id"),
    "behind a sort": lambda spark: numbers(spark).orderBy("key").where("id > 3"),
    "random numbers": of_many("rand()"),
    "seeded random numbers": of_many("rand(7)"),
    "names": of_many("uuid()"),
    "numbers of rows": of_many("monotonically_increasing_id()"),
    "numbers of partitions": of_many("spark_partition_id()"),
    "names of files": of_many("input_file_name()"),
    "in any order": of_many("shuffle(array(1, 2, 3))"),
    "encrypted": of_many("aes_encrypt(s, '0000111122223333')"),
    "encrypted when planned": of_many("aes_encrypt('s', '0000111122223333')"),
    "what Java says": of_many("java_method('java.util.UUID', 'randomUUID')"),
    "who asks": of_many("current_user()"),
    "when it was computed": of_many("now()"),
    "when it was computed, cast": of_many("cast('now' AS timestamp)"),
    "of today": lambda spark: numbers(spark).where("year(current_date()) > id"),
    "since today": sql(
        "SELECT * FROM many WHERE id > (SELECT year(current_date()) FROM few WHERE id = 1)"
    ),
    "dealt out": lambda spark: numbers(spark).groupBy("key").count().repartition(3),
    "in fewer partitions": lambda spark: numbers(spark).coalesce(2),
    "of values": lambda spark: spark.createDataFrame([(1,), (2,)], "n long"),
    "of an RDD": of_rdd,
    "kept": lambda spark: numbers(spark).limit(10).cache(),
    "behind what is kept": lambda spark: numbers(spark).cache().where("key > 3"),
    "beside what is kept": lambda spark: numbers(spark).join(
        numbers(spark).where("id > 7").cache().hint("broadcast"), "id"
    ),
    "computed before": lambda spark: numbers(spark).sample(0.5).localCheckpoint(),
    "some rows": lambda spark: numbers(spark).limit(10),
    "the first rows": sql("SELECT * FROM many ORDER BY id LIMIT 5"),
    "if there are some": sql("SELECT * FROM many WHERE EXISTS (SELECT 1 FROM few)"),
    "a sum of fractions": by_key("sum(f)"),
    "the greatest fraction": by_key("max(f)"),
    "an average": by_key("avg(id)"),
    "a sum that may be null": by_key("try_sum(id)"),
    "the first of a group": by_key("first(id)"),
    "any of a group": by_key("any_value(id)"),
    "a list of a group": by_key("collect_list(id)"),
    "a set of a group": by_key("collect_set(id)"),
    "an array of a group": by_key("array_agg(id)"),
    "what belongs to the greatest": by_key("max_by(id, f)"),
    "about the middle": by_key("approx_percentile(id, 0.5)"),
    "the last of each group": lambda spark: numbered(spark).where("n = 1"),
    "groups of the last ones": lambda spark: numbered(spark).where("n = 1").groupBy("id").count(),
    "sessions": lambda spark: (
        spark.table("many").groupBy(functions.session_window("at", "1 second")).count()
    ),
    "groups of a sample of groups": lambda spark: (
        numbers(spark).groupBy("key").count().sample(0.5, 3).groupBy("count").count()
    ),
    "one of each": lambda spark: numbers(spark).dropDuplicates(["key"]),
    "beside the last of each group": of_newest,
    "beside the last of each group, shuffled": lambda spark: of_newest(spark, "shuffle_hash"),
    "beside one of each": lambda spark: numbers(spark).join(
        numbers(spark).dropDuplicates(["key"]).hint("broadcast"), "key"
    ),
    "after any": sql("SELECT * FROM many WHERE id > (SELECT first(id) FROM few)"),
    "with unmatched rows of a broadcast": sql(
        "SELECT /*+ BROADCAST(r) */ * FROM few l FULL JOIN few r ON l.id > r.id"
    ),
    "of a Python function": plus_one,
    "of a Python function of partitions": of_partitions,
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
def test_dataframe_is_repeatable_exactly_if_its_partitions_are_always_equal(
    spark: SparkSession, make: Make, adaptive: bool, expected: bool
) -> None:
    """Repeatable frames have equal fingerprints when they are made again; other frames do not."""
    spark.conf.set(ADAPTIVE, str(adaptive).lower())
    assert is_repeatable(make(spark)) is expected
    if expected or not adaptive:
        assert (fingerprint(make(spark)) == fingerprint(make(spark))) is expected


def test_dataframe_distributed_by_hash_with_sorting_is_repeatable(spark: SparkSession) -> None:
    spark.conf.set(ADAPTIVE, "false")
    spark.conf.set(SORTS, "true")
    assert is_repeatable(NEVER["dealt out"](spark))


def test_dataframe_is_not_repeatable_if_spark_may_skip_missing_files(spark: SparkSession) -> None:
    assert is_repeatable(spark.table("many"))
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        assert not is_repeatable(spark.table("many"))
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_spark_sort_by_range_divides_the_same_rows_differently_each_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """This is why a sort is not repeatable."""
    spark.conf.set(ADAPTIVE, "false")

    def sizes(folder: Path) -> list[int]:
        rows = spark.range(0, 100_000, 1, 4).selectExpr("hash(id) as h").repartitionByRange(3, "h")
        rows.write.parquet(str(folder))
        return [pq.read_metadata(file).num_rows for file in sorted(folder.glob("*.parquet"))]

    first, second = sizes(tmp_path / "first"), sizes(tmp_path / "second")
    assert sum(first) == sum(second) == 100_000
    assert first != second


def test_fingerprint_depends_on_plan_seed_input_and_partitions_of_a_dataframe(
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


BESIDE = (
    "SELECT /*+ BROADCAST(r) */ l.id, r.id AS other FROM range(0, 99, 1, 3) l JOIN few r "
    "ON l.id = r.id"
)
MANY = ", ".join(f"'{number}'" for number in range(12))
"""So many that Spark makes a set of them."""
PAIRS: dict[str, tuple[str, str]] = {
    "numbers in texts that look like ids of columns": (
        "SELECT * FROM many WHERE s = 'flight#12'",
        "SELECT * FROM many WHERE s = 'flight#13'",
    ),
    "one of many texts that look like addresses of objects": (
        f"SELECT * FROM many WHERE s IN ({MANY}, 'x@ab')",
        f"SELECT * FROM many WHERE s IN ({MANY}, 'x@cd')",
    ),
    "sides of a join whose columns have one name": (
        "SELECT x.key FROM few x JOIN few y ON x.id = y.key",
        "SELECT y.key FROM few x JOIN few y ON x.id = y.key",
    ),
    "values": ("SELECT * FROM VALUES (1), (2)", "SELECT * FROM VALUES (1), (3)"),
    "values on one side of a join": (
        "SELECT few.id FROM few JOIN (VALUES (1), (2)) AS v(id) ON few.id = v.id",
        "SELECT few.id FROM few JOIN (VALUES (1), (3)) AS v(id) ON few.id = v.id",
    ),
    "constants of a subquery": (
        "SELECT * FROM many WHERE id > (SELECT max(id) FROM few WHERE id < 7)",
        "SELECT * FROM many WHERE id > (SELECT max(id) FROM few WHERE id < 8)",
    ),
    "kinds of a join": (BESIDE, BESIDE.replace("JOIN", "LEFT JOIN")),
    "what happens if a number is too large": (
        "SELECT cast(s AS tinyint) AS n FROM many",
        "SELECT try_cast(s AS tinyint) AS n FROM many",
    ),
    "types": ("SELECT cast(id AS int) AS n FROM few", "SELECT cast(id AS bigint) AS n FROM few"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_different_queries_have_different_fingerprints(spark: SparkSession, name: str) -> None:
    prints = []
    for text in PAIRS[name]:
        assert is_repeatable(spark.sql(text))
        prints.append(fingerprint(spark.sql(text)))
    assert prints[0] != prints[1]


HIDDEN: dict[str, str] = {
    "one value": "SELECT * FROM many WHERE id > (SELECT id FROM hidden)",
    "an aggregate of them": "SELECT * FROM many WHERE id > (SELECT max(id) FROM hidden)",
    "one value of each row": "SELECT id + (SELECT id FROM hidden) AS n FROM many",
    "members": "SELECT * FROM many WHERE id IN (SELECT id FROM hidden)",
    "no members": "SELECT * FROM many WHERE id NOT IN (SELECT id FROM hidden)",
    "rows that exist": (
        "SELECT * FROM many m WHERE EXISTS (SELECT 1 FROM hidden h WHERE h.id = m.id)"
    ),
    "a broadcast side": "SELECT /*+ BROADCAST(h) */ * FROM many JOIN hidden h USING (id)",
    "a part of a union": "SELECT id FROM many UNION ALL SELECT id FROM hidden",
    "a subquery of a subquery": (
        "SELECT * FROM many WHERE id > (SELECT max(id) FROM few WHERE id > (SELECT id FROM hidden))"
    ),
    "a table expression that is used twice": (
        "WITH h AS (SELECT id FROM hidden) SELECT /*+ BROADCAST(a, b) */ many.id FROM many "
        "JOIN h a ON many.id = a.id JOIN h b ON many.id = b.id"
    ),
    "values of partitions": "SELECT * FROM parts WHERE p IN (SELECT id FROM hidden)",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_changed_files_anywhere_in_a_plan_change_the_fingerprint(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """The old and the new values have the same size."""
    spark.range(20).selectExpr("id", "id % 5 AS p").write.partitionBy("p").parquet(
        f"{tmp_path}/parts"
    )
    spark.read.parquet(f"{tmp_path}/parts").createOrReplaceTempView("parts")

    def made() -> DataFrame:
        spark.read.parquet(f"{tmp_path}/hidden").createOrReplaceTempView("hidden")
        return spark.sql(HIDDEN[name])

    prints = []
    for value in (3, 4):
        spark.range(value, value + 1, 1, 1).write.mode("overwrite").parquet(f"{tmp_path}/hidden")
        assert is_repeatable(made())
        prints.append(fingerprint(made()))
        assert fingerprint(made()) == prints[-1]
    assert prints[0] != prints[1]


@pytest.mark.parametrize(
    ("name", "value"), [(ZONE, "Asia/Kolkata"), ("spark.sql.ansi.enabled", "true")]
)
def test_session_settings_that_change_rows_change_the_fingerprint(
    spark: SparkSession, name: str, value: str
) -> None:
    spark.conf.set(name, "UTC" if name == ZONE else "false")
    first = fingerprint(numbers(spark))
    spark.conf.set(name, value)
    assert fingerprint(numbers(spark)) != first


def test_reader_options_change_the_fingerprint(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's text of a plan does not show the options."""
    (tmp_path / "rows.csv").write_text("1,2;3\n")

    def read(separator: str) -> str:
        rows = spark.read.schema("a string, b string").option("sep", separator)
        return fingerprint(rows.csv(str(tmp_path)))

    assert read(",") == read(",") != read(";")


def test_rewritten_file_changes_the_fingerprint(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"

    def written(*numbers: int) -> str:
        pq.write_table(pa.table({"n": numbers}), path)
        return fingerprint(spark.read.parquet(str(path)))

    first = written(1, 2, 3)
    pq.read_table(path)
    assert fingerprint(spark.read.parquet(str(path))) == first
    assert written(1, 2, 4) != first


# --- how rows are divided -------------------------------------------------------------------------


LINES = 9 * 2**20 // 64


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that Spark divides into as many pieces for three cores as for four, but others."""
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("".join(f"{number:063d}\n" for number in range(LINES)))
    return str(path)


def test_other_boundaries_of_the_same_number_of_partitions_change_the_fingerprint(
    spark: SparkSession, text: str
) -> None:
    prints, sizes = {}, {}
    for cores in ("3", "4"):
        spark.conf.set(PARALLELISM, cores)
        frame = spark.read.text(text)
        assert is_repeatable(frame)
        prints[cores], sizes[cores] = fingerprint(frame), frame.rdd.getNumPartitions()
    assert sizes["3"] == sizes["4"]
    assert prints["3"] != prints["4"]


class Job:
    """One that reads the text, from a savepoint or not."""

    def __init__(self, spark: SparkSession, text: str, location: Path, savepoint: Any = None):
        self._spark, self._text = spark, text
        self._published = PublishedPartitions(str(location))
        self._readers = Readers(1)
        context: Any = self._readers
        self.enumerator = SparkEnumerator(context, self._published, "lines", ManualClock())
        if savepoint is not None:
            self.enumerator.restore(savepoint)
        self.enumerator.start()

    def compute(self, cores: int, *, as_before: bool = True) -> None:
        """Its Spark stage has so many cores."""
        self._spark.conf.unset(PARALLELISM)
        location = self._published.location
        before = division_before(location, threading.Event()) if as_before else {}
        if not before:
            self._spark.conf.set(PARALLELISM, str(cores))
        division = fixed_division(self._spark, before)
        publish(self._spark.read.text(self._text), location, f"attempt-{cores}", division)

    def read(self, most: int) -> list[int]:
        """The rows of that many partitions."""
        self._readers.assigned.clear()
        for _ in range(most):
            if not self._readers.done:
                self.enumerator.handle_split_request(0)
        return [
            int(line)
            for split in self._readers.assigned.get(0, ())
            for line in self._published.open(split.publication_id, split.name)
            .read_all()["value"]
            .to_pylist()
        ]


@pytest.mark.parametrize(("first", "second"), [(3, 4), (4, 3)])
def test_job_resumes_from_a_savepoint_with_other_cores_but_the_same_partitions(
    spark: SparkSession, text: str, tmp_path: Path, first: int, second: int
) -> None:
    job = Job(spark, text, tmp_path / "one")
    job.compute(first)
    lines = job.read(1)
    later = Job(spark, text, tmp_path / "two", job.enumerator.snapshot_state(1))
    later.compute(second)
    lines += later.read(9)
    assert sorted(lines) == list(range(LINES))


@pytest.mark.parametrize(("first", "second"), [(3, 4), (4, 3)])
def test_savepoint_is_refused_by_a_job_whose_dataframe_has_other_partitions(
    spark: SparkSession, text: str, tmp_path: Path, first: int, second: int
) -> None:
    job = Job(spark, text, tmp_path / "one")
    job.compute(first)
    job.read(1)
    later = Job(spark, text, tmp_path / "two", job.enumerator.snapshot_state(1))
    later.compute(second, as_before=False)
    with pytest.raises(NonDeterministicSourceError, match="divided otherwise"):
        later.read(1)


# --- streams into Spark ---------------------------------------------------------------------------


def test_very_old_dates_in_an_epoch_are_read_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    """By default Spark 3.5 refuses files that do not name the calendar of their writer."""
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


def test_batch_with_other_columns_than_the_last_checkpoint_is_refused_and_named(
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


def test_query_with_an_unsuitable_output_mode_is_refused_with_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = StreamedFrame(rates(spark).groupBy("value").count(), {"once": True}, "append")
    with pytest.raises(AnalysisException, match=r"(?i)append.*output mode.*not supported"):
        publish_stream(frame, str(tmp_path), "1", threading.Event())
