"""What people are told of a job, and how it is cut for messages that are too large with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    JobResult,
    VertexInfo,
)
from flinkray.scheduler.shared.states import JobStatus
from tests.scheduler.builders import JOB
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest

LONG = "what went wrong " * 1000
FINISHED = JobResult(JOB, "a job", JobStatus.FINISHED, 1.0)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"status": JobStatus.RUNNING}, "a terminal status, not RUNNING"),
        ({"status": JobStatus.FAILED}, "needs its cause"),
        ({"net_runtime": -0.1}, "must not be negative"),
    ],
)
def test_job_result_unfinished_failed_without_cause_or_of_negative_time_is_refused(
    changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(FINISHED, **changed)
    assert replace(FINISHED, net_runtime=0.0).net_runtime == 0.0


def test_net_runtime_of_a_job_result_is_end_minus_start_and_never_negative() -> None:
    record = JobRecord(job(a=1), 0.0, 5.0)
    for status in (JobStatus.CREATED, JobStatus.CANCELLING, JobStatus.CANCELED):
        record.enter(status, 5.0)
    assert record.job_result(5.25).net_runtime == 0.25
    assert record.job_result(4.0).net_runtime == 0.0


def test_shortened_job_result_keeps_the_first_part_of_its_texts() -> None:
    assert FINISHED.shortened() == FINISHED
    full = JobResult(
        JOB, "name " * 1000, JobStatus.FAILED, 1.0, LONG, LONG, "/result", 7, LONG, "cause " * 1000
    )
    short = full.shortened()
    for text, beginning in (
        (short.name, "name"),
        (short.failure, "what went wrong"),
        (short.cancel_cause, "cause"),
    ):
        assert text is not None
        assert text.startswith(beginning)
        assert len(text.encode()) <= 1024
    assert (short.failure_traceback, short.schema_json) == (None, None)
    assert (short.result_location, short.num_rows) == ("/result", 7)


def details_of_a_job() -> JobDetails:
    tasks = TasksUnderTest(job(a=2)).run()
    details = tasks.scheduler.details()
    entry = ExceptionEntry(1.0, LONG, LONG, concurrent=(ExceptionEntry(1.0, "beside it"),))
    return replace(details, exceptions=(entry,), name="name " * 1000, pending_reason=LONG)


def test_job_details_too_large_to_send_lose_executions_then_texts_then_everything() -> None:
    details = details_of_a_job()
    bare, brief, least = details.reductions()
    assert bare == details.without_executions()
    assert [len(vertex.executions) for vertex in bare.vertices] == [0]
    assert bare.exceptions == details.exceptions
    assert brief.vertices == bare.vertices
    (entry,) = brief.exceptions
    assert entry.text.startswith("what went wrong")
    assert len(entry.text.encode()) <= 1024
    assert (entry.traceback, entry.concurrent) == (None, ())
    assert least == replace(brief, name=least.name, vertices=(), pending_reason=None, plan="")
    assert len(least.name.encode()) <= 1024
    assert least.name.startswith("name")


def test_progress_of_a_job_without_job_master_has_no_vertices() -> None:
    details = details_of_a_job()
    assert isinstance(details.vertices[0], VertexInfo)
    assert JobProgress.of(details) == JobProgress(JOB, details.name, JobStatus.RUNNING, 0, LONG, ())
