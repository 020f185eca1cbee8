"""When a JobMaster tells that an overview which it gave holds no more."""

from __future__ import annotations

from flinkray.actors.job_master.reports_to_dispatcher import OverviewNews
from flinkray.scheduler.job.transitions import SuspendJob
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest


def running() -> tuple[TasksUnderTest, OverviewNews, list[int]]:
    tasks = TasksUnderTest(job(a=2))
    tasks.run()
    told: list[int] = []
    return tasks, OverviewNews(tasks.scheduler, told.append), told


def test_job_change_before_the_first_overview_request_is_not_reported() -> None:
    tasks, news, told = running()
    tasks.report("a1", ExecutionState.FINISHED)
    news.changed()
    assert (news.number, told) == (0, [])
    assert news.give().number == 0


def test_job_change_is_reported_once_until_the_overview_is_requested_again() -> None:
    tasks, news, told = running()
    given = news.give()
    news.changed()
    assert told == []
    tasks.report("a1", ExecutionState.FINISHED)
    news.changed()
    tasks.report("a2", ExecutionState.FINISHED)
    news.changed()
    assert (told, news.number) == ([1], 1)
    again = news.give()
    assert (again.number, again.overview) == (1, tasks.scheduler.overview())
    assert again.overview != given.overview
    tasks.tell(SuspendJob("why"))
    news.changed()
    assert told == [1]


def test_reading_the_number_of_the_overview_reports_a_job_change_before_the_read() -> None:
    tasks, news, told = running()
    news.give()
    tasks.report("a1", ExecutionState.FINISHED)
    assert (news.number, told) == (1, [1])
    assert (news.give().number, told) == (1, [1])


def test_job_overview_after_a_change_has_a_new_number() -> None:
    """Otherwise a receiver of the earlier overview would take the two for equal."""
    tasks, news, told = running()
    news.give()
    tasks.report("a1", ExecutionState.FINISHED)
    assert (news.give().number, told) == (1, [1])
