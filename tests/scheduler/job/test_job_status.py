"""Changes of a job's status."""

from __future__ import annotations

import pytest

from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.job.job_status import JobStatusMachine
from flinkray.scheduler.shared.states import JobStatus


def test_leaving_a_final_job_status_raises_an_error_with_the_past_transitions() -> None:
    status = JobStatusMachine("job j", 0.0)
    status.enter(JobStatus.CREATED, 1.0)
    status.enter(JobStatus.RUNNING, 2.0)
    status.enter(JobStatus.FINISHED, 3.0)
    with pytest.raises(
        IllegalTransitionError, match=r"(?s)job j cannot .*2\.000 s: CREATED -> RUN"
    ):
        status.enter(JobStatus.RUNNING, 4.0)
