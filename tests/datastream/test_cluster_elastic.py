"""Elastic streaming jobs on a cluster: while they run they become larger and smaller, and go on
from a checkpoint each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.core.errors import JobStateError
from flinkray.testing.threaded_cluster import ThreadedCluster
from tests.datastream.growing import COLLECTOR, Growing
from tests.datastream.quick_restarts import QUICK_RESTARTS

# As in test_cluster_checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIGURATION = {
    **QUICK_RESTARTS,
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout": "50 ms",
    "jobmanager.adaptive-scheduler.scaling-interval.min": "0 s",
}


def test_running_job_is_resized_and_counts_each_number_once(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-01"""
    program = Growing(cluster.client, tmp_path)
    program.runs_with(4)
    with pytest.raises(JobStateError, match=f"{COLLECTOR}.* its parallelism must be 1"):
        program.job.resize({COLLECTOR: (1, 2)})
    sizes, savepoints = (1, 2, 4, 1), str(tmp_path / "savepoints")
    for parallelism in sizes:
        saved = cluster.session.start(program.job.trigger_savepoint_async(savepoints))
        program.resize(parallelism)
        program.runs_with(parallelism)
        assert Path(saved.result(300)).exists(), "it is not given up for the change"
    program.ends_exactly_once(changes=len(sizes))
    assert program.job.details().restarts == 0, "no change is a failure"


def test_job_grows_only_to_the_max_parallelism_of_the_savepoint_it_began_with(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """DI-20: with more subtasks the job, or its next JobMaster, would fail for good."""
    before = Growing(cluster.client, tmp_path / "before", max_parallelism=6)
    before.runs_with(4)
    savepoint = before.job.trigger_savepoint(str(tmp_path / "savepoints"), timeout=300)
    before.is_cancelled()
    program = Growing(cluster.client, tmp_path / "after", savepoint=savepoint)
    program.runs_with(4)

    with pytest.raises(JobStateError, match=r"'.*' cannot have 1 to 7 subtasks.*Ask for 6 at most"):
        program.resize(7)
    program.resize(6)
    program.resize(2)

    program.runs_with(2)
    cluster.crash_all("JobMaster")
    program.runs_with(2)
    program.is_cancelled()


@pytest.mark.parametrize("victim", ["TaskProcess", "JobMaster", "Dispatcher"])
def test_resize_takes_effect_although_a_process_dies_during_the_resize(
    victim: str, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    program = Growing(cluster.client, tmp_path)
    program.runs_with(4)
    for parallelism in (1, 3):
        program.resize(parallelism)
        cluster.crash_all(victim)
        program.runs_with(parallelism)
    program.ends_exactly_once(changes=2)
