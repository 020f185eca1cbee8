"""What becomes of a job whose checkpoints cannot be written, or cannot be read any more, and what
of its checkpoints when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.checkpoint.layout import find_checkpoints
from flinkray.core.errors import FlinkRayError, JobExecutionError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.half_way import HalfWay, is_right

# As in test_cluster_checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
    "task.cancellation.interval": "50 ms",
    "cluster.registration.error-delay": "5 ms",
}
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


def harm(file: Path, how: str) -> None:
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(data[:-1])
    else:
        at = len(data) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
def test_damaged_last_checkpoint_fails_the_job_and_names_the_file(
    how: str, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The number of restarts is unlimited; the job fails all the same."""
    program = HalfWay(cluster.client, tmp_path)
    checkpoint = Path(program.take_checkpoints())
    file = max((checkpoint.parent / "shared").iterdir(), key=lambda it: it.stat().st_mtime)
    harm(file, how)
    cluster.crash_all("TaskProcess")
    with pytest.raises(JobExecutionError) as error:
        program.job.result(300)
    assert str(file) in error.value.text
    assert "start it from a savepoint" in error.value.text
    assert program.job.details().restarts == 1
    program.go_on()  # threads of it wait for that


def shut(directory: Path) -> Path:
    """Nothing can be written there any more: a file is in its place, also for root.  Before that,
    the first checkpoint has gone: while nothing is in the place of the directory, it would count
    as gone, and stay for ever."""
    wait_until(lambda: len(list(directory.glob("chk-*"))) == 1, 300, "the first one to be deleted")
    aside = directory.rename(directory.with_name("aside"))
    directory.touch()
    return aside


def test_unwritable_storage_fails_a_job_that_tolerates_no_failed_checkpoint(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    strict = {
        "execution.checkpointing.tolerable-failed-checkpoints": "0",
        "restart-strategy.type": "none",
    }
    program = HalfWay(cluster.client, tmp_path, settings_of=strict)
    program.take_checkpoints()
    (directory,) = program.checkpoints.iterdir()
    aside = shut(directory)
    with pytest.raises(FlinkRayError, match="cannot write it: "):
        program.job.trigger_checkpoint(timeout=300)
    wait_until(lambda: program.job.status() is JobStatus.FAILED, 300, "the job to fail")
    with pytest.raises(JobExecutionError) as error:
        program.job.result(300)  # though what has to be deleted is out of reach
    directory.unlink()
    aside.rename(directory)
    program.go_on()  # threads of it wait for that
    assert str(directory) in error.value.text
    assert "cannot write it: " in error.value.text


@pytest.mark.parametrize("end", [JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED])
@pytest.mark.parametrize(
    ("retention", "retained_at"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", ()),
        ("DELETE_ON_CANCELLATION", (JobStatus.FAILED,)),
        ("RETAIN_ON_CANCELLATION", (JobStatus.FAILED, JobStatus.CANCELED)),
    ],
)
def test_new_job_starts_from_the_retained_checkpoint_of_an_ended_job(
    end: JobStatus,
    retention: str,
    retained_at: tuple[JobStatus, ...],
    cluster: ThreadedCluster,
    tmp_path: Path,
) -> None:
    """CP-29"""
    own = {RETENTION: retention, "restart-strategy.type": "none"}
    program = HalfWay(cluster.client, tmp_path, settings_of=own)
    last = program.take_checkpoints()
    if end is JobStatus.CANCELED:
        program.job.cancel()
    elif end is JobStatus.FAILED:
        cluster.crash_all("TaskProcess")
    else:
        program.go_on()
        assert is_right(list(program.results))
    assert program.job.wait(300) is end
    program.go_on()  # threads of it wait for that
    left = find_checkpoints(str(program.checkpoints))
    told = program.job.details().checkpoints
    assert told is not None
    assert told.latest_completed is not None
    assert (told.latest_completed.path is not None) == (end in retained_at)
    if end not in retained_at:
        assert left == []
        return
    assert left == [last]
    again = HalfWay(cluster.client, tmp_path / "again", savepoint=last)
    again.go_on()
    assert is_right(list(again.results))
    assert find_checkpoints(str(program.checkpoints)) == [last], "it is its user's"
