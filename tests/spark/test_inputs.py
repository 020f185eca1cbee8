"""What a Spark stage reads of other vertices, and what of it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.core.ids import ResultPartitionID
from flinkray.file_results import ResultDirectory, ResultSchemaError, ResultWriter
from flinkray.spark.gateway import SparkStageInput
from flinkray.spark.inputs import missing_of, read_input
from tests.scheduler.builders import GRAPH
from tests.scheduler.graphs import data_set_id


def partition(number: int) -> ResultPartitionID:
    return ResultPartitionID(GRAPH, data_set_id(1), number, 0)


def written(path: Path, column: str = "n") -> str:
    writer = ResultWriter(ResultDirectory(str(path)))
    writer.write(pa.record_batch({column: [1]}))
    writer.finish()
    return str(path)


def test_deleted_stage_input_is_reported_missing_and_one_on_failed_storage_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the storage must not make the producers run again."""
    (tmp_path / "file").touch()
    there, gone, away = written(tmp_path / "a"), tmp_path / "b", tmp_path / "file" / "c"
    read = SparkStageInput(
        "read", (there, str(gone), str(away)), tuple(partition(n) for n in range(3))
    )
    assert missing_of((read,)) == (partition(1),)
    assert f"cannot look at {away}" in caplog.text


def test_input_whose_tasks_have_written_different_columns_is_refused(tmp_path: Path) -> None:
    """Spark would take the columns of one file, and read null for the others."""
    directories = (written(tmp_path / "a"), written(tmp_path / "b", "m"))
    read = SparkStageInput("read", directories, tuple(partition(n) for n in range(2)))
    before_spark_is_used: Any = None
    with pytest.raises(ResultSchemaError, match="have written different columns"):
        read_input(before_spark_is_used, read)
