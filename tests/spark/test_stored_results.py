"""What rows of a DataFrame are in the files of a stage's result; computed by Spark itself."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from flinkray.core import private_files
from flinkray.spark.result import store_result
from tests.local_spark import spark

__all__ = ["spark"]

pytestmark = [
    pytest.mark.spark,
    # PySpark 3.5 compares pandas' version with the long deprecated distutils.
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    # It leaves the sockets of what it collects to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def test_stored_results_keep_dates_and_times_of_the_years_1_to_9999(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's own writer uses nanoseconds, which cannot hold these years, writes times without
    a zone, and refuses dates that old."""
    texts = ["0001-01-01 00:00:00", "1582-10-10 12:00:00", "9999-12-31 23:59:59.999999"]
    rows = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    frame = rows.selectExpr(
        "timestamp(text || 'Z') AS at",
        "CAST(text AS timestamp_ntz) AS local",
        "date(text) AS day",
        "array(struct(timestamp(text || 'Z') AS at)) AS nested",
    )
    result = store_result(frame, str(tmp_path / "result"))

    assert result.num_rows == 3
    table = pyarrow.dataset.dataset(str(tmp_path / "result"), format="parquet").to_table()
    instants = pa.timestamp("us", tz="UTC")
    assert table.schema.field("at").type == instants
    assert table.schema.field("local").type == pa.timestamp("us")
    local = [datetime.datetime.fromisoformat(text) for text in texts]
    at = [time.replace(tzinfo=datetime.timezone.utc) for time in local]
    assert table["at"].to_pylist() == at
    assert table["local"].to_pylist() == local
    assert table["day"].to_pylist() == [time.date() for time in local]
    assert table["nested"].to_pylist() == [[{"at": time}] for time in at]


@pytest.mark.parametrize("is_read", [False, True])
def test_files_of_a_returned_frame_have_the_file_modes_of_the_cluster(
    spark: SparkSession, tmp_path: Path, is_read: bool
) -> None:
    """Spark's own files have the modes of the umask."""
    result = tmp_path / "result"
    with private_files.permitted(private_files.GROUP):
        store_result(spark.range(3).coalesce(1), str(result), is_read=is_read)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in result.rglob("*.parquet")}
    assert modes == {False: 0o640}
    assert stat.S_IMODE(result.stat().st_mode) == 0o750


def test_storing_a_result_does_not_change_the_spark_settings_of_the_function(
    spark: SparkSession, tmp_path: Path
) -> None:
    kind = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(kind, "TIMESTAMP_MILLIS")
    try:
        frame = spark.sql("SELECT timestamp'2024-01-01 00:00:00.000001' AS at")
        store_result(frame, str(tmp_path / "result"))
        assert spark.conf.get(kind) == "TIMESTAMP_MILLIS"
    finally:
        spark.conf.unset(kind)
    store_result(spark.range(1), str(tmp_path / "other"))
    assert spark.conf.get(kind) == "INT96"
    (row,) = pyarrow.dataset.dataset(str(tmp_path / "result"), format="parquet").to_table()["at"]
    assert row.as_py().microsecond == 1
