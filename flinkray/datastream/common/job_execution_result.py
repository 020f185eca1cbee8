"""The result of a program that has ended: its job id and its run time."""

from __future__ import annotations

from typing import Any

from flinkray.core.ids import JobID


class JobExecutionResult:
    """The result of a program that has ended: its job id and its run time."""

    def __init__(self, job_id: JobID, net_runtime: float) -> None:
        self._job_id = job_id
        self._net_runtime = net_runtime

    def get_job_id(self) -> JobID:
        """Return the id of the job that ended."""
        return self._job_id

    def is_job_execution_result(self) -> bool:
        """Return true: the program has ended."""
        return True

    def get_net_runtime(self) -> int:
        """Return the run time in milliseconds."""
        return round(self._net_runtime * 1000)

    def get_accumulator_result(self, accumulator_name: str) -> None:
        """Return None: functions have no accumulators, as in PyFlink."""
        return

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Return an empty dict: functions have no accumulators, as in PyFlink."""
        return {}

    def __str__(self) -> str:
        return f"job {self._job_id} finished in {self.get_net_runtime()} ms"
