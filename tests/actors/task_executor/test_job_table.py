"""JobTable: one entry per job, and which steps are errors."""

from __future__ import annotations

import pytest

from flinkray.actors.task_executor.job_connections import Job, JobTable
from flinkray.core.errors import IllegalTransitionError
from tests.scheduler.builders import JOB, OTHER_JOB


class Table:
    """A table whose services are numbers; ``closed`` lists those that were closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.table: JobTable[int, str] = JobTable(self.closed.append)

    def job(self) -> Job[int, str]:
        return self.table.get_or_create(JOB, lambda: 1)


def test_job_entry_and_its_services_are_created_once() -> None:
    """TM-23."""
    jobs = Table()
    assert jobs.job() is jobs.table.get_or_create(JOB, lambda: 2)
    assert jobs.job().services == 1
    assert jobs.table.get(OTHER_JOB) is None


def test_connecting_a_connected_job_entry_raises() -> None:
    """TM-23."""
    job = Table().job()
    job.connect("first")
    with pytest.raises(IllegalTransitionError, match="it is connected already"):
        job.connect("second")
    assert job.connection == "first"


def test_access_to_a_disconnected_job_entry_fails_until_reconnection() -> None:
    """TM-23."""
    job = Table().job()
    job.connect("first")
    assert job.disconnect() == "first"
    assert not job.is_connected
    with pytest.raises(IllegalTransitionError, match="it is not connected"):
        _ = job.connection
    with pytest.raises(IllegalTransitionError, match="it is not connected"):
        job.disconnect()
    job.connect("second")
    assert job.connection == "second"


def test_access_to_a_closed_job_entry_raises() -> None:
    """TM-23."""
    jobs = Table()
    job = jobs.job()
    jobs.table.remove(JOB)
    assert jobs.closed == [1]
    with pytest.raises(IllegalTransitionError, match="it is closed"):
        _ = job.services
    with pytest.raises(IllegalTransitionError, match="it is closed"):
        job.connect("late")
    with pytest.raises(IllegalTransitionError, match="it is closed"):
        job.disconnect()
    job.close()
    assert jobs.closed == [1]


def test_connected_job_entry_cannot_be_closed() -> None:
    """TM-23."""
    jobs = Table()
    jobs.job().connect("first")
    with pytest.raises(IllegalTransitionError, match="still connected"):
        jobs.table.remove(JOB)
    assert jobs.table.get(JOB) is jobs.job()


def test_closing_the_table_closes_the_services_of_all_jobs() -> None:
    """TM-23."""
    jobs = Table()
    jobs.job().connect("first")
    other = jobs.table.get_or_create(OTHER_JOB, lambda: 2)
    jobs.table.close()
    assert jobs.closed == [1, 2]
    assert len(jobs.table) == 0
    with pytest.raises(IllegalTransitionError):
        _ = other.services
