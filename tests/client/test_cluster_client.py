"""The client, against a Dispatcher that dies and loses answers when a test says so."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import replace

import pytest

from flinkray.client import dispatcher_connection
from flinkray.client.cluster_client import ClientClosedError, ClusterClient
from flinkray.core.errors import (
    ConfigurationError,
    DuplicateJobSubmissionError,
    JobCancelledError,
    JobExecutionError,
    JobNotFinishedError,
    JobNotFoundError,
    JobStateError,
    RpcConnectionError,
    RpcError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID, JobVertexID, LeaderSessionID
from flinkray.ha import LeaderRetrievalListener, LeaderRetrievalService
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.graph.job_graph import ParallelismBounds, ParallelismRange
from flinkray.scheduler.reports.job_info import JobProgress, VertexInfo
from flinkray.scheduler.shared.states import JobStatus
from tests.client.scripted_cluster import ADDRESS, World, job_graph, scripted_cluster


def interrupt_main_thread() -> None:
    """As Ctrl-C does."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_submitted_job_is_listed_and_its_handle_answers(
    world: World, client: ClusterClient
) -> None:
    job = job_graph("flights")
    handle = client.submit(job)
    assert [(overview.job_id, overview.name) for overview in client.list_jobs()] == [
        (job.job_id, "flights")
    ]
    assert handle.status() is JobStatus.RUNNING
    assert handle.details().name == "flights"
    assert handle.exceptions() == ()
    assert client.job(job.job_id.hex()).status() is JobStatus.RUNNING
    assert client.cluster_overview().dashboard_url == "http://127.0.0.1:8265"
    world.end(job.job_id)
    result = handle.result()
    assert (result.job_id, result.job_name, result.net_runtime) == (job.job_id, "flights", 2.5)
    assert handle.wait() is JobStatus.FINISHED


@pytest.mark.parametrize(
    ("status", "error_type", "text"),
    [
        (JobStatus.FAILED, JobExecutionError, "failed: ValueError: no flights"),
        (JobStatus.CANCELED, JobCancelledError, "was cancelled"),
        (JobStatus.SUSPENDED, JobNotFinishedError, "was suspended"),
    ],
)
def test_result_of_a_job_that_did_not_finish_raises_with_its_id_and_cause(
    world: World, client: ClusterClient, status: JobStatus, error_type: type[Exception], text: str
) -> None:
    handle = client.submit(job_graph())
    world.end(
        handle.job_id, status, failure="ValueError: no flights", failure_traceback="line 7 of user"
    )
    with pytest.raises(error_type, match=f"job {handle.job_id}: 'a job' {text}") as caught:
        handle.result()
    assert caught.value.remote_traceback == "line 7 of user"  # type: ignore[attr-defined]
    assert handle.wait() is status


def test_unknown_job_is_said_to_be_unknown(client: ClusterClient) -> None:
    handle = client.job(JobID.generate())
    for ask in (handle.status, handle.details, handle.result, handle.cancel, handle.exceptions):
        with pytest.raises(JobNotFoundError, match=handle.job_id.hex()):
            ask()


def test_malformed_job_id_is_refused_before_anybody_is_asked(client: ClusterClient) -> None:
    with pytest.raises(ValueError, match="not a JobID: 'nonsense'"):
        client.job("nonsense")


def test_cancelling_reaches_the_job_and_what_it_answers_reaches_the_caller(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    handle.cancel()
    client.cancel(handle.job_id)
    assert world.cancelled == [handle.job_id] * 2
    world.end(handle.job_id)
    with pytest.raises(JobStateError, match="has finished"):
        handle.cancel()


def test_vertices_are_resized_by_their_names(world: World, client: ClusterClient) -> None:
    """DI-20, as the client sees it."""
    handle = client.submit(job_graph())
    vertices = tuple(
        VertexInfo(JobVertexID(bytes([i]) * 16), name, 1, ())
        for i, name in enumerate(("a", "b", "twins", "twins"))
    )
    world.jobs[handle.job_id] = replace(world.jobs[handle.job_id], vertices=vertices)

    handle.resize({"b": (1, 4)})
    handle.resize(others=(2, 3))

    bounds = ParallelismBounds(vertices[1].vertex_id, 1, 4)
    assert world.resized == [
        (handle.job_id, (bounds,), None),
        (handle.job_id, (), ParallelismRange(2, 3)),
    ]
    for name, number in (("c", 0), ("twins", 2)):
        with pytest.raises(ConfigurationError, match=f"{number} vertices named '{name}'"):
            handle.resize({name: (1, 4)})


def test_second_submission_of_an_id_is_a_duplicate(client: ClusterClient) -> None:
    """SPEC DI-02, as the client sees it."""
    job = job_graph()
    client.submit(job)
    with pytest.raises(DuplicateJobSubmissionError):
        client.submit(job)


def test_submission_whose_answer_was_lost_is_made_again_and_counts_once(
    world: World, client: ClusterClient
) -> None:
    async def die_before_the_answer() -> None:
        world.network.crash("Dispatcher")
        await asyncio.get_running_loop().create_future()  # an answer that never comes

    world.after_submission = die_before_the_answer
    handle = client.submit(job_graph())
    assert (world.submissions, world.dispatchers) == (2, 2)
    assert [job.job_id for job in client.list_jobs()] == [handle.job_id]


def test_waiting_for_a_result_survives_the_dispatcher(world: World, client: ClusterClient) -> None:
    deaths = iter(range(3))

    async def die_three_times() -> None:
        if next(deaths, None) is not None:
            world.network.crash("Dispatcher")
            await asyncio.get_running_loop().create_future()
        world.end_on_loop(handle.job_id)

    handle = client.submit(job_graph())
    world.on_result_request = die_three_times
    assert handle.result(timeout=300).job_id == handle.job_id
    assert world.dispatchers == 4


class ToldRetriever(LeaderRetrievalService):
    """Tells what the test tells it."""

    def __init__(self) -> None:
        self.listener: LeaderRetrievalListener | None = None

    async def start(self, listener: LeaderRetrievalListener) -> None:
        self.listener = listener

    async def stop(self) -> None:
        self.listener = None


def test_questions_wait_for_the_leader_session_that_the_dispatcher_has() -> None:
    """A client that follows a leader of the past is refused, and asks again when it hears of the
    present one."""
    retriever = ToldRetriever()
    with scripted_cluster(retriever) as (world, client):

        async def tell(session: LeaderSessionID) -> None:
            assert retriever.listener is not None
            retriever.listener.notify_leader_address(ADDRESS, session)

        world.loop.run(tell(LeaderSessionID.generate()))
        answer = client._start(client._connection.ask("list", lambda g: g.list_jobs(), None))
        with pytest.raises(
            RpcTimeoutError, match=r"could not list the jobs.*'test' within 0\.2 s \(.*fencing"
        ):
            client._ask("list the jobs", lambda gateway: gateway.list_jobs(), 0.2)
        assert not answer.done()
        world.loop.run(tell(world.session))
        assert answer.result(300) == ()


def test_a_question_is_asked_as_soon_as_somebody_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """HA-27: and not when the next attempt is due."""
    monkeypatch.setattr(dispatcher_connection, "_FIRST_DELAY", 1000.0)
    retriever = ToldRetriever()
    with scripted_cluster(retriever) as (world, client):
        answer = client._start(client._connection.ask("list", lambda g: g.list_jobs(), None))

        async def tell() -> None:
            assert retriever.listener is not None
            retriever.listener.notify_leader_address(None, None)
            await asyncio.sleep(0)
            retriever.listener.notify_leader_address(ADDRESS, world.session)

        world.loop.run(tell())
        assert answer.result(300) == ()


def test_who_finds_no_dispatcher_because_what_says_who_leads_is_away_is_told_so() -> None:
    class LostRetriever(ToldRetriever):
        outage = "ZooKeeper has not answered since noon"

    with scripted_cluster(LostRetriever(), unreachable_limit=0.3) as (_, client):
        for timeout, error in ((None, RpcConnectionError), (0.2, RpcTimeoutError)):
            with pytest.raises(error, match=r"'test' .*ZooKeeper has not answered since noon"):
                client._ask("list the jobs", lambda gateway: gateway.list_jobs(), timeout)


def test_that_nobody_leads_is_told() -> None:
    refused = pytest.raises(RpcConnectionError, match=r"cluster 'test' .*no Dispatcher leads")
    with scripted_cluster(ToldRetriever(), unreachable_limit=0.1) as (_, client), refused:
        client.list_jobs()


def test_dispatcher_that_is_gone_for_good_is_given_up_with_the_way_out() -> None:
    with scripted_cluster(unreachable_limit=0.3) as (world, client):
        handle = client.submit(job_graph())

        async def gone() -> None:
            world.network.kill("Dispatcher")

        world.loop.run(gone())
        with pytest.raises(RpcConnectionError, match=r"cluster 'test' .* flinkray cluster status"):
            handle.result()


def test_who_finds_no_dispatcher_because_rays_head_is_away_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What finds processes waits for the head without end; clients do not."""
    monkeypatch.setattr(dispatcher_connection, "_LONGEST_SEARCH", 0.05)
    outage = "Ray's head has not answered since noon"
    monkeypatch.setattr(LocalRpcService, "outage", outage)

    async def wait_for_the_head(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(LocalRpcService, "connect", wait_for_the_head)
    with scripted_cluster(unreachable_limit=0.3) as (_, client):
        for timeout in (None, 0.2):
            with pytest.raises(RpcError, match=outage):
                client._ask("list the jobs", lambda gateway: gateway.list_jobs(), timeout)


def test_waiting_longer_than_the_timeout_leaves_the_job_alone(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    for wait in (handle.wait, handle.result):
        with pytest.raises(TimeoutError, match=rf"job {handle.job_id} .* 0\.05 s; it goes on"):
            wait(timeout=0.05)
    assert handle.status() is JobStatus.RUNNING
    assert world.cancelled == []


def test_ctrl_c_ends_the_waiting_at_once_and_not_the_job(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())

    async def interrupt() -> None:
        interrupt_main_thread()

    world.on_result_request = interrupt
    with pytest.raises(KeyboardInterrupt):
        handle.result()
    assert handle.status() is JobStatus.RUNNING
    assert world.cancelled == []


def test_progress_is_told_in_the_waiting_thread_until_the_end(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    seen: list[tuple[int, JobStatus]] = []

    def on_progress(progress: JobProgress) -> None:
        seen.append((threading.get_ident(), progress.status))
        if len(seen) == 3:
            world.end(handle.job_id)

    assert handle.wait(on_progress=on_progress, interval=0.01) is JobStatus.FINISHED
    assert seen[:3] == [(threading.get_ident(), JobStatus.RUNNING)] * 3


def test_an_error_in_the_progress_callback_ends_the_waiting(client: ClusterClient) -> None:
    def on_progress(progress: JobProgress) -> None:
        raise LookupError(progress.name)

    with pytest.raises(LookupError, match="a job"):
        client.submit(job_graph()).wait(on_progress=on_progress, interval=0.01)


async def test_handles_are_awaited_on_any_loop(cluster: tuple[World, ClusterClient]) -> None:
    world, client = cluster
    handle = await client.submit_async(job_graph())
    other = await client.submit_async(job_graph())
    world.end(handle.job_id)
    assert (await handle).job_id == handle.job_id
    waiting = asyncio.ensure_future(_result_of(client, other.job_id))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.cancelled == []
    world.end(other.job_id, JobStatus.CANCELED)
    with pytest.raises(JobCancelledError):
        await other


async def _result_of(client: ClusterClient, job_id: JobID) -> object:
    return await client.job(job_id)


async def test_async_with_closes_the_client() -> None:
    with scripted_cluster() as (_, client):
        async with client:
            pass
        with pytest.raises(ClientClosedError):
            client.list_jobs()


def test_client_that_is_closed_waits_for_the_jobs_that_it_has_begun_to_end(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(client.ending_with_it(job_graph(), "of a reason"))

    async def end() -> None:
        world.end_on_loop(handle.job_id, JobStatus.CANCELED)

    world.on_result_request = end
    client.end_attached(handle.job_id)
    client.close()
    assert handle.job_id in world.cancelled
    assert world.jobs[handle.job_id].status is JobStatus.CANCELED


def test_closed_client_says_so_and_closing_again_is_fine() -> None:
    with scripted_cluster() as (_, client):
        handle = client.submit(job_graph())
        client.close()
        client.close()
        for ask in (client.list_jobs, handle.status, handle.result):
            with pytest.raises(ClientClosedError, match=r"flinkray\.connect"):
                ask()
        assert "closed" in repr(client)


def test_blocking_call_on_the_clients_own_loop_is_refused(
    world: World, client: ClusterClient
) -> None:
    async def call() -> None:
        with pytest.raises(RuntimeError, match="would never return"):
            client.list_jobs()

    world.loop.run(call())


def test_threads_share_a_client(client: ClusterClient) -> None:
    handles = []
    threads = [
        threading.Thread(target=lambda: handles.append(client.submit(job_graph())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job.job_id for job in client.list_jobs()} == {handle.job_id for handle in handles}
    assert len(handles) == 8
