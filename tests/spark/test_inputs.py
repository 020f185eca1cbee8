"""What a Spark stage reads of other vertices, and what of it is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flinkray.core.ids import ResultPartitionID
from flinkray.file_results import ResultDirectory, ResultWriter
from flinkray.spark.gateway import SparkStageInput
from flinkray.spark.inputs import missing_of
from tests.scheduler.builders import GRAPH
from tests.scheduler.graphs import data_set_id


def partition(number: int) -> ResultPartitionID:
    return ResultPartitionID(GRAPH, data_set_id(1), number, 0)


def written(path: Path) -> str:
    writer = ResultWriter(ResultDirectory(str(path)))
    writer.write(pa.record_batch({"n": [1]}))
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
