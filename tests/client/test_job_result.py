"""Results of jobs, and source lines in their errors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.client.code_lines import with_code_lines
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import JobExecutionError, JobStateError
from flinkray.core.ids import JobID
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

JOB = JobID(b"a job of a test.")
TABLE = pa.table({"carrier": ["AA", "UA", "B6"], "delay": [1.5, None, -3.0]})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """As Spark writes it: part files, a marker, checksums."""
    path = tmp_path / "data"
    path.mkdir()
    pq.write_table(TABLE.slice(0, 2), path / "part-00000.snappy.parquet")
    pq.write_table(TABLE.slice(2), path / "part-00001.snappy.parquet")
    (path / "_SUCCESS").touch()
    (path / ".part-00000.snappy.parquet.crc").write_bytes(b"crc")
    return path


def result_at(location: str | None, num_rows: int | None = None) -> JobExecutionResult:
    return JobExecutionResult(
        JobResult(JOB, "flights", JobStatus.FINISHED, 2.0, None, None, location, num_rows)
    )


@pytest.mark.parametrize("as_uri", [False, True])
def test_result_rows_are_read_from_a_path_and_from_a_file_uri(
    directory: Path, as_uri: bool
) -> None:
    result = result_at(directory.as_uri() if as_uri else str(directory), 3)
    assert result.has_data
    assert result.num_rows == 3
    assert result.schema == TABLE.schema
    assert result.to_arrow() == TABLE
    assert result.to_pandas()["carrier"].tolist() == ["AA", "UA", "B6"]


def test_result_batches_have_at_most_the_requested_number_of_rows(directory: Path) -> None:
    batches = list(result_at(str(directory)).to_batches(batch_size=1))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert pa.Table.from_batches(batches) == TABLE


def test_reading_the_result_of_a_job_without_dataframe_raises_job_state_error() -> None:
    result = result_at(None)
    assert not result.has_data
    assert result.num_rows is None
    for read in (result.to_arrow, result.to_pandas, result.to_batches, lambda: result.schema):
        with pytest.raises(JobStateError, match=f"job {JOB}: returned no DataFrame"):
            read()


SCRIPT = "def f(n):\n    return 1 / n\n"


def traceback_of(script: object) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 2, in f\n'
        '  File "/nowhere/library.py", line 7, in g\n'
        "ZeroDivisionError: division by zero\n"
    )


def test_frames_in_the_traceback_of_a_failed_job_get_their_local_source_lines(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    shown = with_code_lines(traceback_of(script))
    assert shown.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 2, in f',
        "    return 1 / n",
        '  File "/nowhere/library.py", line 7, in g',
        "ZeroDivisionError: division by zero",
    ]
    assert with_code_lines(shown) == shown
    assert with_code_lines("no traceback") == "no traceback"


def test_job_error_shows_source_lines_in_its_text_and_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = traceback_of(script)
    result = JobResult(
        JobID.generate(), "a job", JobStatus.FAILED, 1.0, failure=text, failure_traceback=text
    )
    with pytest.raises(JobExecutionError) as caught:
        JobExecutionResult.of(result)
    assert "    return 1 / n\n" in str(caught.value)
    assert "    return 1 / n\n" in (caught.value.remote_traceback or "")
