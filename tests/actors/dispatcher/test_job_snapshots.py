"""What is answered for snapshots of a job that has ended."""

from __future__ import annotations

import re

import pytest

from flinkray.actors.dispatcher.job_snapshots import taken_at_the_end
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken, SnapshotType
from flinkray.core.errors import JobStateError
from flinkray.core.ids import JobID, TriggerID
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

STOP = SnapshotRequest(TriggerID(b"\1" * 16), SnapshotType.SUSPEND_WITH_SAVEPOINT)
ENDED = JobResult(JobID(bytes(16)), "a job", JobStatus.FINISHED, 1.0)
STOPPED = ENDED.with_savepoint("/savepoints/a", STOP.trigger_id)


def test_the_request_that_has_stopped_the_job_is_answered_again() -> None:
    assert taken_at_the_end(STOPPED, STOP) == SnapshotTaken("/savepoints/a")


@pytest.mark.parametrize(
    ("result", "kind", "text"),
    [
        (ENDED, SnapshotType.SAVEPOINT, "no savepoint can be taken"),
        (ENDED, SnapshotType.CHECKPOINT, "no checkpoint can be taken"),
        (ENDED, SnapshotType.SUSPEND_WITH_SAVEPOINT, "it cannot be stopped with a savepoint"),
        (ENDED, SnapshotType.TERMINATE_WITH_SAVEPOINT, "it cannot be stopped with a savepoint"),
        (
            STOPPED,
            SnapshotType.SUSPEND_WITH_SAVEPOINT,
            "it cannot be stopped with a savepoint; it was stopped with the savepoint "
            "/savepoints/a",
        ),
    ],
)
def test_another_request_is_refused(result: JobResult, kind: SnapshotType, text: str) -> None:
    request = SnapshotRequest(TriggerID(b"\2" * 16), kind)
    with pytest.raises(JobStateError, match=re.escape(f"it has ended (FINISHED): {text}") + "$"):
        taken_at_the_end(result, request)
