"""Results that are files, of tasks whose storage fails; with jobs: tests/datastream and
tests/system."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flinkray.actors.task_process.file_results import FileOutput
from flinkray.file_results import FileResultLostError, ResultDirectory
from flinkray.rpc import LocalRpcService, RpcEndpoint

ROWS = pa.record_batch({"n": [1, 2]})


def output_at(location: Path) -> FileOutput:
    endpoint = RpcEndpoint(LocalRpcService("process"), "endpoint")
    return FileOutput(endpoint, str(location), "stage (1/1)#0")


async def test_failed_task_ends_although_its_result_cannot_be_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the end of the task would never be reported."""
    (tmp_path / "file").touch()
    await output_at(tmp_path / "file" / "result").abandon()
    assert "result before the job ends: [Errno 20] Cannot delete directory" in caplog.text


async def test_finished_result_is_kept_when_it_is_abandoned_and_an_unfinished_one_is_lost(
    tmp_path: Path,
) -> None:
    finished, failed = output_at(tmp_path / "finished"), output_at(tmp_path / "failed")
    for output in (finished, failed):
        output.write(ROWS)
    await finished.finish()
    for output in (finished, failed):
        await output.abandon()
    (file,) = ResultDirectory(str(tmp_path / "finished")).list()
    assert file.row_groups == (2,)
    with pytest.raises(FileResultLostError):
        ResultDirectory(str(tmp_path / "failed")).list()
