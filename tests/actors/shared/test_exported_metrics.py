"""Jobs under the names of Flink's metrics, as they are exported and as REST has them."""

from __future__ import annotations

import pytest

from flinkray.actors.shared.exported_metrics import (
    CLUSTER,
    JOB,
    job_tags,
    samples_of,
    values_of_job,
)
from flinkray.core.ids import JobID
from flinkray.rest.metrics_json import of_job
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.job_info import JobDetails
from flinkray.scheduler.shared.states import JobStatus

LAST = CheckpointStatistics(7, CheckpointStatus.COMPLETED, False, 5000, 1.5, 2, 2, 300, 100, "/chk")


@pytest.mark.parametrize("last", [None, LAST])
def test_job_metrics_are_the_same_in_rest_and_in_the_exported_metrics(
    last: CheckpointStatistics | None,
) -> None:
    checkpoints = CheckpointsOverview(1, 2, 3, 0, last, None, None, None, ())
    started = {JobStatus.RUNNING.name: 10.0}
    job = JobID(bytes(16))
    details = JobDetails(
        job, "flights", JobStatus.RUNNING, 9.0, None, started, 4, (), checkpoints=checkpoints
    )

    exported = values_of_job(10.0, 4, checkpoints, 12.0)

    of_rest = of_job(details, 12.0)
    of_rest.pop("lastCheckpointExternalPath", None)  # which is no number
    assert exported == of_rest
    assert (exported["uptime"], exported["totalNumberOfCheckpoints"]) == (2000, 6)
    if last is not None:
        assert exported["lastCheckpointCompletedTimestamp"] == 6500
    assert len(list(samples_of(JOB, exported, job_tags("flights", job)))) == len(exported)


def test_job_that_does_not_run_has_an_uptime_of_0() -> None:
    """A job without checkpoints has no checkpoint metrics."""
    assert values_of_job(0.0, 4, None, 12.0) == {"uptime": 0, "numRestarts": 4}


def test_metric_names_are_written_in_the_style_of_ray() -> None:
    (sample,) = samples_of(CLUSTER, {"numRegisteredTaskManagers": 3}, {})
    assert sample.name == f"{CLUSTER}num_registered_task_managers"
