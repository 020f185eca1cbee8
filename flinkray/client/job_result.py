"""The result of a finished job or program, with the rows of the DataFrame that it has returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flinkray.client.code_lines import with_code_lines
from flinkray.core.errors import (
    JobCancelledError,
    JobExecutionError,
    JobNotFinishedError,
    JobStateError,
)
from flinkray.core.ids import JobID
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

if TYPE_CHECKING:
    import pandas
    import pyarrow
    import pyarrow.dataset


class JobExecutionResult:
    """Result of a job, or of a program, that finished.

    The data of a returned DataFrame stay in Parquet files in the storage and are read on request.
    If the function returned nothing, there is no data (``has_data``). A program returns nothing.
    """

    def __init__(self, result: JobResult) -> None:
        self._result = result

    @classmethod
    def of_program(cls, job_id: JobID, name: str, net_runtime: float) -> JobExecutionResult:
        """Make the result of a program that has finished in this process. *net_runtime*:
        seconds."""
        return cls(JobResult(job_id, name, JobStatus.FINISHED, net_runtime))

    @classmethod
    def of(cls, result: JobResult) -> JobExecutionResult:
        """Make the result of a job that has finished. Raises JobExecutionError (the job failed),
        JobCancelledError (it was cancelled) or JobNotFinishedError (it was suspended)."""
        if result.status is JobStatus.FINISHED:
            return cls(result)
        error: JobExecutionError | JobCancelledError | JobNotFinishedError
        if result.status is JobStatus.FAILED:
            error = JobExecutionError(
                result.job_id, f"{result.name!r} failed: {with_code_lines(result.failure or '')}"
            )
        elif result.status is JobStatus.CANCELED:
            cause = "" if result.cancel_cause is None else f": {result.cancel_cause}"
            error = JobCancelledError(result.job_id, f"{result.name!r} was cancelled{cause}")
        else:
            error = JobNotFinishedError(
                result.job_id,
                f"{result.name!r} was suspended: its cluster stopped before the job reached an end",
            )
        trace = result.failure_traceback
        error.remote_traceback = None if trace is None else with_code_lines(trace)
        raise error

    @property
    def job_id(self) -> JobID:
        """The id of the job."""
        return self._result.job_id

    @property
    def job_name(self) -> str:
        """The name of the job."""
        return self._result.name

    @property
    def savepoint(self) -> str | None:
        """The location of the savepoint with which the job was stopped. None: it was not stopped
        with a savepoint."""
        return self._result.savepoint

    @property
    def net_runtime(self) -> float:
        """The seconds from the job's start to its end."""
        return self._result.net_runtime

    @property
    def location(self) -> str | None:
        """The directory (path or URI) of the Parquet files; None: the job returned no DataFrame."""
        return self._result.result_location

    @property
    def has_data(self) -> bool:
        """Whether the job returned a DataFrame."""
        return self.location is not None

    @property
    def num_rows(self) -> int | None:
        """The number of rows of the DataFrame. None: the job returned no DataFrame."""
        return self._result.num_rows

    @property
    def schema(self) -> pyarrow.Schema:
        """The schema of the DataFrame. Raises what :meth:`to_batches` raises."""
        with self._finding_files():
            return self._dataset().schema

    def to_arrow(self) -> pyarrow.Table:
        """Return all rows as a table. Raises what :meth:`to_batches` raises."""
        with self._finding_files():
            return self._dataset().to_table()

    def to_batches(self, batch_size: int = 65536) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows, at most *batch_size* at a time; they are never all in memory.

        Raises:
            JobStateError: the job returned no DataFrame.
            FileResultLostError: files of the rows are missing.
        """
        with self._finding_files():
            return self._found(self._dataset().to_batches(batch_size=batch_size))

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame. Raises what :meth:`to_batches` raises, and
        ImportError if pandas is not installed."""
        table: Any = self.to_arrow()
        frame: pandas.DataFrame = table.to_pandas()
        return frame

    def get_job_id(self) -> JobID:
        """Return the id of the job, as in PyFlink."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """Return the run time in milliseconds, as in PyFlink."""
        return round(self.net_runtime * 1000)

    def is_job_execution_result(self) -> bool:
        """Return true, as in PyFlink: the program has ended."""
        return True

    def get_accumulator_result(self, accumulator_name: str) -> None:
        """Return None, as in PyFlink: functions have no accumulators."""
        return

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return an empty dict, as in PyFlink: functions have no accumulators."""
        return {}

    def _found(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with self._finding_files():
            yield from batches

    @contextmanager
    def _finding_files(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            from flinkray.file_results.result_files import FileResultLostError

            assert self.location is not None
            text = f"the rows of job {self.job_id} at {self.location} are lost: {error}"
            raise FileResultLostError(text, self.location) from error

    def _dataset(self) -> pyarrow.dataset.Dataset:
        import pyarrow.dataset
        import pyarrow.fs

        if self.location is None:
            raise JobStateError(self.job_id, "returned no DataFrame, so there are no rows to read")
        if "://" not in self.location:
            return pyarrow.dataset.dataset(self.location, format="parquet")
        file_system, path = pyarrow.fs.FileSystem.from_uri(self.location)
        return pyarrow.dataset.dataset(path, format="parquet", filesystem=file_system)

    def __str__(self) -> str:
        return f"job {self.job_id} finished in {self.get_net_runtime()} ms"

    def __repr__(self) -> str:
        rows = "" if self.num_rows is None else f", {self.num_rows} rows at {self.location}"
        return f"<JobExecutionResult {self.job_id}: {self.net_runtime:.1f} s{rows}>"
