"""Who is in a Spark session that jobs share, and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

import psutil
import pytest

from flinkray.core.resources import ResourceProfile
from flinkray.spark.gateway import SparkSessionAccess, SparkSessionGuest
from flinkray.spark.guest import GuestJobs
from flinkray.spark.session_guests import EXPECTED, GuestBook, SessionGuests, end_process
from flinkray.spark.session_requests import SparkSessionEndedError

IDLE = 300.0


class RecordedSession:
    """An open session that keeps what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.needs: dict[str, int] = {}
        self.is_asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.is_forgotten = threading.Event()

    def access(self, tag: str) -> SparkSessionAccess:
        return SparkSessionAccess(1, "", 2, "/log", 1, ResourceProfile(1.0), {}, tag)

    def cancel(self, tag: str) -> None:
        self.is_asked.set()
        if not self.answers.wait(10):
            self.asked.append("nobody was there while the JVM did not answer")
        self.asked.append(tag)

    def works_for(self, tag: str) -> bool:
        """Until its jobs have been cancelled as often as that takes."""
        return self.asked.count(tag) < self.needs.get(tag, 1)

    def forget_cached(self) -> None:
        self.asked.append("forget")
        self.is_forgotten.set()


class OneLook:
    """Stops who holds a session at the first look."""

    def wait(self, timeout: float) -> bool:
        return True


def guest(process: str, stage: str = "", pid: int = 0, started: float = 0.0) -> SparkSessionGuest:
    """Of a stage of its own by default."""
    return SparkSessionGuest(process, pid, started, stage or process)


def let_in(guests: SessionGuests, one: SparkSessionGuest) -> str:
    """However often it has to ask; its tag."""
    guests.announce(one)
    while (access := guests.come(one)) is None:
        pass
    return access.tag


def opened(
    session: RecordedSession, now: list[float], ended: list[str] | None = None
) -> SessionGuests:
    def end(guest: SparkSessionGuest) -> None:
        assert ended is not None, "nobody is to be ended"
        ended.append(guest.process)

    guests = SessionGuests(IDLE, lambda: now[0], end)
    guests.hold(session, OneLook())
    return guests


def test_idle_shared_session_ends_if_no_first_stage_joins_or_after_the_idle_timeout() -> None:
    book = GuestBook(IDLE)
    book.expect(0.0)
    assert not book.is_over(EXPECTED - 1)
    assert book.is_over(EXPECTED)
    book.come("a")
    assert not book.is_over(10 * IDLE)
    assert book.leave("a", 1000.0)
    assert not book.is_over(1000.0 + IDLE - 1)
    assert book.is_over(1000.0 + IDLE)


def test_idle_shared_session_does_not_end_once_another_stage_is_announced() -> None:
    book = GuestBook(1.0)
    book.come("a")
    book.leave("a", 100.0)
    book.expect(101.0)
    assert not book.is_over(102.0)


def test_stage_that_leaves_a_shared_session_has_its_spark_jobs_cancelled() -> None:
    session = RecordedSession()
    guests = opened(session, [0.0])
    tags = {name: let_in(guests, guest(name)) for name in ("a", "b")}
    guests.leave("a")
    assert session.asked == [tags["a"]]
    guests.leave("a")  # its process has ended, too
    guests.leave("b")
    assert session.asked == [tags["a"], tags["b"], "forget"]


def test_earlier_attempt_of_a_stage_is_ended_before_the_next_joins_a_shared_session() -> None:
    """Both attempts would write to the same place."""
    session = RecordedSession()
    ended: list[str] = []
    guests = opened(session, [0.0], ended)
    a, b = (let_in(guests, guest(name, stage)) for name, stage in (("a", "s"), ("b", "t")))
    session.needs = {a: 4}  # a command that begins one Spark job after the other
    let_in(guests, guest("c", "s"))
    assert set(ended) == {"a"}
    assert session.asked == [a] * 4
    guests.leave("b")
    assert session.asked[4:] == [b]


def test_new_attempt_joins_a_session_after_the_jobs_of_the_last_attempt_are_over() -> None:
    """The old process is ended too, since it may be suspended. Other stages do not wait."""
    session = RecordedSession()
    ended: list[str] = []
    guests = opened(session, [0.0], ended)
    tag = let_in(guests, guest("a", "s"))
    session.needs = {tag: 3}
    guests.leave("a")
    assert session.asked == [tag, "forget"]
    let_in(guests, guest("b", "t"))
    assert (session.asked, ended) == ([tag, "forget"], []), "another stage does not wait"
    let_in(guests, guest("c", "s"))
    assert session.asked == [tag, "forget", tag, tag]
    assert set(ended) == {"a"}


def test_spark_job_that_a_stage_began_just_before_it_left_the_session_is_cancelled() -> None:
    session = RecordedSession()
    guests = opened(session, [0.0])
    tag = let_in(guests, guest("a"))
    session.needs = {tag: 3}
    guests.leave("a")
    while guests.are_leaving:
        guests.see_off()
    assert session.asked == [tag, "forget", tag, tag]


def test_later_of_two_waiting_attempts_joins_a_session_and_the_earlier_is_refused() -> None:
    """The earlier attempt may have been given up while it waited."""
    session = RecordedSession()
    guests = opened(session, [0.0], [])
    first, second = guest("b", "s"), guest("c", "s")
    session.needs = {let_in(guests, guest("a", "s")): 3}
    for one in (first, second):
        guests.announce(one)
    assert guests.come(second) is None
    with pytest.raises(SparkSessionEndedError, match="b was overtaken"):
        guests.come(first)
    guests.give_up(first)
    while guests.come(second) is None:
        assert guests.earlier(second) in ("", "a")


def test_shared_session_does_not_time_out_while_a_stage_waits_to_join() -> None:
    now = [0.0]
    session = RecordedSession()
    guests = opened(session, now, [])
    session.needs = {let_in(guests, guest("a", "s")): 1_000_000}
    guests.leave("a")
    waiting = guest("b", "s")
    guests.announce(waiting)
    for _ in range(10):
        now[0] += IDLE - 1
        assert guests.come(waiting) is None
        assert not guests.is_over()


def test_stage_that_waits_for_a_shared_session_is_refused_when_the_session_ends() -> None:
    session = RecordedSession()
    guests = opened(session, [0.0], [])
    session.needs = {let_in(guests, guest("a", "s")): 1_000_000}
    guests.leave("a")
    waiting = guest("b", "s")
    guests.announce(waiting)
    assert guests.come(waiting) is None
    guests.close()
    with pytest.raises(SparkSessionEndedError):
        guests.come(waiting)


def test_suspended_process_of_a_stage_is_killed_and_one_that_ended_is_ignored() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        started = psutil.Process(process.pid).create_time()
        os.kill(process.pid, signal.SIGSTOP)
        end_process(guest("a", pid=process.pid, started=started - 1))
        with pytest.raises(subprocess.TimeoutExpired):  # it is another one
            process.wait(0.2)
        end_process(guest("a", pid=process.pid, started=started))
        assert process.wait(10) == -signal.SIGKILL
    end_process(guest("a", pid=process.pid, started=started))


def test_shared_session_after_its_timeout_accepts_no_stage() -> None:
    now = [0.0]
    guests = opened(RecordedSession(), now)
    now[0] = EXPECTED
    assert guests.is_over()
    with pytest.raises(SparkSessionEndedError):
        guests.expect()
    with pytest.raises(SparkSessionEndedError):
        let_in(guests, guest("a"))


def test_shared_session_that_ends_before_it_opened_fails_the_stages_that_wait() -> None:
    guests = SessionGuests(IDLE)
    guests.close()
    assert isinstance(guests.opened.exception(timeout=0), SparkSessionEndedError)


def spark_job(status: str, stage: int, tasks: int) -> dict[str, Any]:
    counts = {"numCompletedStages": 1, "numCompletedTasks": tasks, "numFailedTasks": 2}
    return {**counts, "status": status, "stageIds": [stage]}


def running_stage(number: int) -> dict[str, Any]:
    counts = {"numTasks": 4, "numActiveTasks": 1, "numCompleteTasks": 3, "numFailedTasks": 0}
    return {**counts, "stageId": number, "name": "count"}


def test_progress_of_a_stage_in_a_shared_session_counts_only_its_own_spark_jobs() -> None:
    spark = {1: spark_job("RUNNING", 1, 4), 2: spark_job("RUNNING", 2, 4)}
    progress = GuestJobs(spark.get).look([1], [running_stage(2), running_stage(1)])
    assert (progress.completed_stages, progress.completed_tasks, progress.failed_tasks) == (1, 4, 2)
    assert [stage.stage_id for stage in progress.active_stages] == [1]


def test_ended_spark_job_counts_for_progress_although_spark_has_forgotten_it() -> None:
    spark = {1: spark_job("SUCCEEDED", 1, 4), 2: spark_job("RUNNING", 2, 1)}
    fetched: list[int] = []

    def fetch(job_id: int) -> dict[str, Any] | None:
        fetched.append(job_id)
        return spark.get(job_id)

    jobs = GuestJobs(fetch)
    assert jobs.look([1, 2], []).completed_tasks == 5
    spark[2] = spark_job("RUNNING", 2, 3)
    assert jobs.look([1, 2], []).completed_tasks == 7
    del spark[1]
    spark[2] = spark_job("FAILED", 2, 3)
    assert jobs.look([2, 3], []).completed_tasks == 7  # 3 is forgotten since its id was known
    assert jobs.look([2], []).completed_tasks == 7
    assert fetched == [1, 2, 2, 2, 3]
