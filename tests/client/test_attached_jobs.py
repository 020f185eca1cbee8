"""Jobs that end with their client: what the client says of itself, and what it does when it is
closed or interrupted."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from flinkray.client.attached_run import ProgressLog, run_attached
from flinkray.client.client_session import session_of
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.submission import SubmissionInterrupted
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobID
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.graph.job_graph import AttachedClient
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until
from tests.client.scripted_cluster import World, job_graph, scripted_cluster

QUICK = ReadableConfig(
    {
        "client.heartbeat.interval": "10 ms",
        "client.heartbeat.timeout": "7 s",
        "client.close-timeout": "10 ms",
    }
)


@pytest.fixture
def quick() -> Iterator[tuple[World, ClusterClient]]:
    """Its client has short times."""
    with scripted_cluster(configuration=QUICK) as cluster:
        yield cluster


def interrupt_main_thread() -> None:
    """As Ctrl-C does."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# --- heartbeats -----------------------------------------------------------------------------------


def test_client_sends_heartbeats_for_an_attached_job_until_it_is_detached(
    quick: tuple[World, ClusterClient],
) -> None:
    world, client = quick
    job = session_of(client).ending_with_client(job_graph(), "of a reason")
    client.submit(job)
    wait_until(lambda: len(world.heartbeats) > 3, 150, "heartbeats")
    assert set(world.heartbeats) == {(job.job_id,)}
    session_of(client).detach(job.job_id)
    other = client.submit(session_of(client).ending_with_client(job_graph(), "of a reason")).job_id
    wait_until(lambda: world.heartbeats[-1] == (other,), 150, "heartbeats for the other job only")


def test_client_heartbeats_go_to_the_next_dispatcher_after_one_has_died(
    quick: tuple[World, ClusterClient],
) -> None:
    world, client = quick
    job = session_of(client).ending_with_client(job_graph(), "of a reason")
    client.submit(job)
    for dispatchers in (2, 3):
        world.loop.run(world.crash())
        before = len(world.heartbeats)
        wait_until(lambda: len(world.heartbeats) > before, 150, "heartbeats")  # noqa: B023
        assert world.dispatchers == dispatchers


def test_client_sends_no_heartbeats_for_jobs_that_may_outlive_the_client(
    quick: tuple[World, ClusterClient],
) -> None:
    world, client = quick
    alone = client.submit(job_graph())
    job = session_of(client).ending_with_client(job_graph(), "of a reason")
    client.submit(job)
    wait_until(lambda: len(world.heartbeats) > 3, 150, "heartbeats")
    assert not [each for each in world.heartbeats if alone.job_id in each]


# --- which programs end with their client ---------------------------------------------------------


def submitted_client(world: World, run: Callable[[], object]) -> AttachedClient | None:
    """Of the one job that *run* submits, and which ends at once."""

    async def end() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id)

    world.after_submission = end
    run()
    (graph,) = world.graphs
    return graph.client


def a_program(
    client: ClusterClient, setting: str | None = None
) -> tuple[StreamExecutionEnvironment, Callable[[], object]]:
    """Which it can be executed by."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    if setting is not None:
        configuration = Configuration()
        configuration.set_string("execution.shutdown-on-attached-exit", setting)
        env.configure(configuration)
    env.from_sequence(1, 2).sink_to(DiscardingSink())
    return env, env.execute


def test_job_whose_results_are_collected_ends_with_its_client() -> None:
    with scripted_cluster(configuration=QUICK) as (world, client):
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        stream = env.from_sequence(1, 2)
        found = submitted_client(world, lambda: list(stream.execute_and_collect()))
        assert found is not None
        assert found.heartbeat_timeout == 7.0
        assert re.search(rf", process {os.getpid()} on \S+$", found.name)
        assert found.reason == "nobody else can read its results"


@pytest.mark.parametrize(
    ("of_client", "of_program", "ends"),
    [
        (None, None, False),
        (True, None, True),
        (None, "true", True),
        (True, "false", False),
    ],
)
def test_job_that_a_program_awaits_ends_with_its_client_only_if_configured(
    of_client: bool | None, of_program: str | None, ends: bool
) -> None:
    of = {} if of_client is None else {"execution.shutdown-on-attached-exit": of_client}
    with scripted_cluster(configuration=ReadableConfig(of)) as (world, client):
        found = submitted_client(world, a_program(client, of_program)[1])
        assert (found is not None) is ends
        if found is not None:
            assert found.reason == "execution.shutdown-on-attached-exit is true"


def test_job_that_a_program_does_not_await_never_ends_with_its_client() -> None:
    of = {"execution.shutdown-on-attached-exit": True}
    with scripted_cluster(configuration=ReadableConfig(of)) as (world, client):
        env, _ = a_program(client)
        assert submitted_client(world, env.execute_async) is None


# --- closing --------------------------------------------------------------------------------------


def test_closing_client_cancels_jobs_and_warns_of_those_that_have_not_ended_in_time(
    quick: tuple[World, ClusterClient], caplog: pytest.LogCaptureFixture
) -> None:
    world, client = quick
    job = session_of(client).ending_with_client(job_graph(), "of a reason")
    client.submit(job)
    client.close()
    assert world.cancelled == [job.job_id]
    (left,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert left == (
        f"left job {job.job_id}: it was told to end and has not within 0.01 s "
        f"(client.close-timeout); look with: flinkray info {job.job_id}"
    )


# --- Ctrl-C while a job is being submitted --------------------------------------------------------


def submitted(client: ClusterClient) -> JobID:
    job = job_graph()
    client.submit(job)
    return job.job_id


def waited_for(client: ClusterClient) -> JobID:
    job = job_graph()
    run_attached(client, job, ProgressLog(lambda: 0.0))
    return job.job_id


def executed(client: ClusterClient) -> None:
    a_program(client)[1]()


def executed_without_waiting(client: ClusterClient) -> None:
    a_program(client)[0].execute_async()


def collected(client: ClusterClient) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.from_sequence(1, 2).execute_and_collect()


class Withdrawal(logging.Filter):
    """Sees in the log when the client begins to take a job back."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.on_begin: Callable[[], None] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        if "(Ctrl-C again leaves at once)" in record.getMessage():
            self.begun.set()
            self.on_begin()
        return True

    async def interrupt(self) -> None:
        """Ctrl-C; returns when it has had its effect."""
        interrupt_main_thread()
        await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, 30)


@pytest.fixture
def withdrawal() -> Iterator[Withdrawal]:
    withdrawal = Withdrawal()
    log = logging.getLogger("flinkray.client.cluster_client")
    log.addFilter(withdrawal)
    yield withdrawal
    log.removeFilter(withdrawal)


@pytest.mark.parametrize(
    "run", [submitted, waited_for, executed, executed_without_waiting, collected]
)
def test_ctrl_c_during_a_submission_cancels_the_submitted_job(
    run: Callable[[ClusterClient], object],
    world: World,
    client: ClusterClient,
    withdrawal: Withdrawal,
) -> None:
    async def end() -> None:
        if world.cancelled:
            world.end_on_loop(world.cancelled[0], JobStatus.CANCELED)

    world.after_submission = withdrawal.interrupt
    world.on_result_request = end
    with pytest.raises(SubmissionInterrupted) as interrupted:
        run(client)
    (job_id,) = world.jobs
    assert world.cancelled == [job_id]
    assert str(interrupted.value) == f"job {job_id} ({world.jobs[job_id].name}) was cancelled"
    assert world.jobs[job_id].status is JobStatus.CANCELED
    client.close()
    assert world.cancelled == [job_id], "nothing is left to be cancelled"


def test_second_ctrl_c_during_a_submission_stops_waiting_and_names_the_job(
    world: World, client: ClusterClient, withdrawal: Withdrawal
) -> None:
    async def interrupt_and_hang() -> None:
        await withdrawal.interrupt()
        await asyncio.Event().wait()

    world.after_submission = interrupt_and_hang
    withdrawal.on_begin = interrupt_main_thread
    with pytest.raises(SubmissionInterrupted) as interrupted:
        submitted(client)
    (job_id,) = world.jobs
    assert str(interrupted.value) == (
        f"job {job_id} (a job) may have been submitted; look with: flinkray info {job_id}"
    )
    assert world.cancelled == []


def test_ctrl_c_during_a_duplicate_submission_does_not_cancel_the_first_job(
    world: World, client: ClusterClient, withdrawal: Withdrawal
) -> None:
    job = job_graph()
    client.submit(job)
    world.before_submission = withdrawal.interrupt
    with pytest.raises(SubmissionInterrupted, match=f"^{re.escape(job.text)} was not submitted$"):
        client.submit(job)
    assert world.cancelled == []


async def test_job_is_cancelled_when_the_caller_cancels_submit_async(
    cluster: tuple[World, ClusterClient],
) -> None:
    world, client = cluster
    stored = threading.Event()
    answer = asyncio.Event()

    async def wait() -> None:
        stored.set()
        await answer.wait()

    async def end() -> None:
        world.end_on_loop(world.cancelled[0], JobStatus.CANCELED)

    world.after_submission = wait
    world.on_result_request = end
    job = job_graph()
    submitting = asyncio.ensure_future(client.submit_async(job))
    await asyncio.get_running_loop().run_in_executor(None, stored.wait)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting

    async def go_on() -> None:
        answer.set()

    await asyncio.wrap_future(world.loop.start(go_on()))
    await asyncio.get_running_loop().run_in_executor(
        None, lambda: wait_until(lambda: world.results[job.job_id].done(), 150, "the job's end")
    )
    assert world.cancelled == [job.job_id]
