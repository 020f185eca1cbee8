"""The client, against a Dispatcher that dies and loses answers when a test says so."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import replace

import pytest

from flinkray.client import dispatcher_connection
from flinkray.client.client_session import session_of
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


def test_submitted_job_is_listed_and_its_handle_returns_status_details_and_result(
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
def test_result_of_a_job_that_did_not_finish_raises_an_error_with_its_id_and_cause(
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


def test_requests_for_an_unknown_job_raise_job_not_found_error(client: ClusterClient) -> None:
    handle = client.job(JobID.generate())
    for ask in (handle.status, handle.details, handle.result, handle.cancel, handle.exceptions):
        with pytest.raises(JobNotFoundError, match=handle.job_id.hex()):
            ask()


def test_malformed_job_id_raises_value_error_without_a_request(client: ClusterClient) -> None:
    with pytest.raises(ValueError, match="not a JobID: 'nonsense'"):
        client.job("nonsense")


def test_cancel_reaches_the_job_and_raises_if_the_job_has_finished(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    handle.cancel()
    client.cancel(handle.job_id)
    assert world.cancelled == [handle.job_id] * 2
    world.end(handle.job_id)
    with pytest.raises(JobStateError, match="has finished"):
        handle.cancel()


def test_resize_finds_vertices_by_name_and_refuses_unknown_or_ambiguous_names(
    world: World, client: ClusterClient
) -> None:
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


def test_second_submission_of_a_job_id_raises_duplicate_job_submission_error(
    client: ClusterClient,
) -> None:
    """SPEC DI-02, as the client sees it."""
    job = job_graph()
    client.submit(job)
    with pytest.raises(DuplicateJobSubmissionError):
        client.submit(job)


def test_submission_with_a_lost_answer_is_repeated_and_starts_one_job(
    world: World, client: ClusterClient
) -> None:
    async def die_before_the_answer() -> None:
        world.network.crash("Dispatcher")
        await asyncio.get_running_loop().create_future()  # an answer that never comes

    world.after_submission = die_before_the_answer
    handle = client.submit(job_graph())
    assert (world.submissions, world.dispatchers) == (2, 2)
    assert [job.job_id for job in client.list_jobs()] == [handle.job_id]


def test_waiting_for_a_result_continues_when_the_dispatcher_dies(
    world: World, client: ClusterClient
) -> None:
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


def test_request_refused_for_an_old_fencing_token_is_repeated_with_the_new_token() -> None:
    """A client that follows a past leader is refused. The client repeats the request when it learns
    of the present leader."""
    retriever = ToldRetriever()
    with scripted_cluster(retriever) as (world, client):

        async def tell(session: LeaderSessionID) -> None:
            assert retriever.listener is not None
            retriever.listener.notify_leader_address(ADDRESS, session)

        world.loop.run(tell(LeaderSessionID.generate()))
        answer = session_of(client).start(
            session_of(client).dispatcher.ask("list", lambda g: g.list_jobs(), None)
        )
        with pytest.raises(
            RpcTimeoutError, match=r"could not list the jobs.*'test' within 0\.2 s \(.*fencing"
        ):
            session_of(client).ask("list the jobs", lambda gateway: gateway.list_jobs(), 0.2)
        assert not answer.done()
        world.loop.run(tell(world.session))
        assert answer.result(300) == ()


def test_client_request_is_sent_as_soon_as_a_dispatcher_is_elected_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HA-27: the request does not wait until the next attempt is due."""
    monkeypatch.setattr(dispatcher_connection, "_FIRST_DELAY", 1000.0)
    retriever = ToldRetriever()
    with scripted_cluster(retriever) as (world, client):
        answer = session_of(client).start(
            session_of(client).dispatcher.ask("list", lambda g: g.list_jobs(), None)
        )

        async def tell() -> None:
            assert retriever.listener is not None
            retriever.listener.notify_leader_address(None, None)
            await asyncio.sleep(0)
            retriever.listener.notify_leader_address(ADDRESS, world.session)

        world.loop.run(tell())
        assert answer.result(300) == ()


def test_error_of_a_request_without_a_dispatcher_names_the_zookeeper_outage() -> None:
    class LostRetriever(ToldRetriever):
        outage = "ZooKeeper has not answered since noon"

    with scripted_cluster(LostRetriever(), unreachable_limit=0.3) as (_, client):
        for timeout, error in ((None, RpcConnectionError), (0.2, RpcTimeoutError)):
            with pytest.raises(error, match=r"'test' .*ZooKeeper has not answered since noon"):
                session_of(client).ask(
                    "list the jobs", lambda gateway: gateway.list_jobs(), timeout
                )


def test_error_of_a_client_request_says_that_no_dispatcher_leads() -> None:
    refused = pytest.raises(RpcConnectionError, match=r"cluster 'test' .*no Dispatcher leads")
    with scripted_cluster(ToldRetriever(), unreachable_limit=0.1) as (_, client), refused:
        client.list_jobs()


def test_request_fails_with_advice_when_no_dispatcher_is_reachable_for_too_long() -> None:
    with scripted_cluster(unreachable_limit=0.3) as (world, client):
        handle = client.submit(job_graph())

        async def gone() -> None:
            world.network.kill("Dispatcher")

        world.loop.run(gone())
        with pytest.raises(RpcConnectionError, match=r"cluster 'test' .* flinkray cluster status"):
            handle.result()


def test_error_of_a_request_without_a_dispatcher_names_the_outage_of_rays_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search for processes waits for Ray's head without limit, but a client must not wait."""
    monkeypatch.setattr(dispatcher_connection, "_LONGEST_SEARCH", 0.05)
    outage = "Ray's head has not answered since noon"
    monkeypatch.setattr(LocalRpcService, "outage", outage)

    async def wait_for_the_head(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(LocalRpcService, "connect", wait_for_the_head)
    with scripted_cluster(unreachable_limit=0.3) as (_, client):
        for timeout in (None, 0.2):
            with pytest.raises(RpcError, match=outage):
                session_of(client).ask(
                    "list the jobs", lambda gateway: gateway.list_jobs(), timeout
                )


def test_waiting_longer_than_the_timeout_raises_and_the_job_runs_on(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(job_graph())
    for wait in (handle.wait, handle.result):
        with pytest.raises(TimeoutError, match=rf"job {handle.job_id} .* 0\.05 s; it goes on"):
            wait(timeout=0.05)
    assert handle.status() is JobStatus.RUNNING
    assert world.cancelled == []


def test_ctrl_c_while_waiting_for_a_job_ends_the_waiting_and_not_the_job(
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


def test_progress_callback_is_called_in_the_waiting_thread_until_the_job_ends(
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


async def test_job_handle_can_be_awaited_and_a_cancelled_wait_leaves_the_job_running(
    cluster: tuple[World, ClusterClient],
) -> None:
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


def test_closing_client_waits_for_the_end_of_jobs_that_it_has_cancelled(
    world: World, client: ClusterClient
) -> None:
    handle = client.submit(session_of(client).ending_with_client(job_graph(), "of a reason"))

    async def end() -> None:
        world.end_on_loop(handle.job_id, JobStatus.CANCELED)

    world.on_result_request = end
    session_of(client).end_attached(handle.job_id)
    client.close()
    assert handle.job_id in world.cancelled
    assert world.jobs[handle.job_id].status is JobStatus.CANCELED


def test_closed_client_raises_client_closed_error_and_can_be_closed_again() -> None:
    with scripted_cluster() as (_, client):
        handle = client.submit(job_graph())
        client.close()
        client.close()
        for ask in (client.list_jobs, handle.status, handle.result):
            with pytest.raises(ClientClosedError, match=r"flinkray\.connect"):
                ask()
        assert "closed" in repr(client)


def test_blocking_client_call_on_the_event_loop_of_the_client_is_refused(
    world: World, client: ClusterClient
) -> None:
    async def call() -> None:
        with pytest.raises(RuntimeError, match="would never return"):
            client.list_jobs()

    world.loop.run(call())


def test_several_threads_can_submit_jobs_through_one_client(client: ClusterClient) -> None:
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


def test_client_has_no_public_names_besides_those_meant_for_users(client: ClusterClient) -> None:
    """The session of the client has what the modules of flinkray need."""
    public = {name for name in dir(client) if not name.startswith("_")}
    assert public == {
        *("cancel", "close", "cluster_id", "cluster_overview", "dashboard_url"),
        *("dispose_savepoint", "job", "list_jobs", "list_models"),
        *("submit", "submit_async"),
    }
