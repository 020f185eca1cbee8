"""How a program has ended."""

from __future__ import annotations

from typing import Any

from flinkray.core.ids import JobID


class JobExecutionResult:
    """The end of a program."""

    def __init__(self, job_id: JobID, net_runtime: float) -> None:
        self._job_id = job_id
        self._net_runtime = net_runtime

    def get_job_id(self) -> JobID:
        """The job that ended."""
        return self._job_id

    def is_job_execution_result(self) -> bool:
        """Always true: it has ended."""
        return True

    def get_net_runtime(self) -> int:
        """Milliseconds."""
        return round(self._net_runtime * 1000)

    def get_accumulator_result(self, accumulator_name: str) -> None:
        """None: functions have no accumulators, as PyFlink's have none."""
        return

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Nothing, for the same reason."""
        return {}

    def __str__(self) -> str:
        return f"job {self._job_id} finished in {self.get_net_runtime()} ms"
