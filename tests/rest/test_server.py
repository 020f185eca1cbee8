"""What holds for every path: versions, errors, limits, who may ask (RE-01 to RE-12)."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flinkray.client.client_session import session_of
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import (
    ConfigurationError,
    RpcConnectionError,
    RpcTimeoutError,
    UnreadableRecordError,
)
from flinkray.core.ids import JobID
from flinkray.rest import cluster_json
from flinkray.rest.cluster import Cluster, SharedLooks
from flinkray.rest.handlers import Answer
from flinkray.rest.json_values import WrittenOnce
from flinkray.rest.server import RestServer, RestSettings, application, ports_of
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.client.scripted_cluster import scripted_cluster
from tests.rest.conftest import Counting, settings
from tests.rest.http import TOKEN, Asker

T = TypeVar("T")
READS = {"rest_anonymous__access": "read"}


@contextmanager
def served(cluster: ThreadedCluster, of: Cluster, **values: str) -> Iterator[Asker]:
    server = RestServer(of, settings(**values))
    cluster.session.run(server.start())
    try:
        yield Asker(server.url)
    finally:
        cluster.session.run(server.close())


class Unreachable:
    """A cluster whose Dispatcher is not there."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def ask(
        self, question: str, call: Callable[[Any], Awaitable[T]], timeout: float | None
    ) -> T:
        raise self._error


class Blocked:
    """A cluster whose Dispatcher does not answer one question."""

    def __init__(self, cluster: ThreadedCluster, question: str) -> None:
        self._dispatcher = cluster.session.dispatcher
        self._question = question
        self.is_asked = threading.Event()
        self._go_on: asyncio.Event | None = None
        self._cluster = cluster

    async def ask(
        self, question: str, call: Callable[[Any], Awaitable[T]], timeout: float | None
    ) -> T:
        if question == self._question:
            self._go_on = asyncio.Event()
            self.is_asked.set()
            await self._go_on.wait()
        return await self._dispatcher.ask(question, call, timeout)

    def go_on(self) -> None:
        async def go_on() -> None:
            assert self._go_on is not None
            self._go_on.set()

        self._cluster.session.run(go_on())


def test_paths_are_served_with_and_without_v1_and_not_with_v2(ask: Asker) -> None:
    """RE-01."""
    assert ask.get("/v1/config") == ask.get("/config")
    assert ask("GET", "/v2/config").status == 404


def test_errors_are_answered_as_json(ask: Asker) -> None:
    """RE-02."""
    unknown = ask("GET", "/nothing/here?x=1")
    assert (unknown.status, unknown.body) == (404, {"errors": ["Not found: /nothing/here?x=1"]})
    wrong = ask("PUT", "/overview")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET")
    assert wrong.error == "Method Not Allowed"


@pytest.mark.parametrize(
    "error", [RpcConnectionError("no Dispatcher leads"), RpcTimeoutError("no answer")]
)
def test_request_without_a_leading_dispatcher_is_answered_with_503(
    error: Exception, cluster: ThreadedCluster
) -> None:
    """RE-04."""
    with served(cluster, Unreachable(error)) as ask:
        answer = ask("GET", "/jobs/overview")
    assert answer.status == 503
    assert "Service temporarily unavailable due to an ongoing leader election" in answer.error
    assert answer.body["errors"][1] == str(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("of <b> no kind"), "ValueError: of <b> no kind"),
        (UnreadableRecordError(JobID(bytes(16)), "/stored", "cut short"), "cut short"),
    ],
)
def test_internal_error_is_answered_with_500_as_json(
    error: Exception, text: str, cluster: ThreadedCluster
) -> None:
    """RE-02."""
    with served(cluster, Unreachable(error)) as ask:
        answers = [ask("GET", "/jobs"), ask("POST", f"/jobs/{'0' * 32}/stop", {})]
    for answer in answers:
        assert (answer.status, text in answer.error) == (500, True)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"


def test_delete_of_the_cluster_ends_all_its_processes(tmp_path: Path) -> None:
    with threaded_cluster(str(tmp_path)) as cluster:
        with served(cluster, Counting(cluster)) as ask:
            assert ask("DELETE", "/v1/cluster").status == 200
        assert cluster.mini.processes() == ["client"]


def test_delete_of_a_cluster_with_standby_masters_is_refused_with_409() -> None:
    with scripted_cluster() as (_, client):
        server = RestServer(session_of(client).dispatcher, settings())
        session_of(client).run(server.start())
        refused = Asker(server.url)("DELETE", "/cluster")
        assert (refused.status, "flinkray cluster down" in refused.error) == (409, True)
        session_of(client).run(server.close())


def test_request_after_the_death_of_the_dispatcher_is_answered_by_the_next_one(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    """RE-04."""
    before = ask.get("/jobs")
    cluster.crash("Dispatcher")
    assert ask.get("/jobs") == before


def test_slow_rest_request_does_not_delay_the_answer_to_another(cluster: ThreadedCluster) -> None:
    """RE-06."""
    blocked = Blocked(cluster, "list the jobs")
    with served(cluster, blocked) as ask, ThreadPoolExecutor() as threads:
        waiting = threads.submit(ask, "GET", "/jobs")
        blocked.is_asked.wait(10)
        assert ask("GET", "/taskmanagers").status == 200
        assert not waiting.done()
        blocked.go_on()
        assert waiting.result(10).status == 200


def test_closing_the_rest_server_waits_for_the_answer_in_progress(cluster: ThreadedCluster) -> None:
    """RE-10."""
    blocked = Blocked(cluster, "list the jobs")
    server = RestServer(blocked, settings())
    cluster.session.run(server.start())
    ask = Asker(server.url)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(ask, "GET", "/jobs")
        blocked.is_asked.wait(10)
        closing_ = cluster.session.start(server.close())
        blocked.go_on()
        assert waiting.result(10).status == 200
        closing_.result(10)
        with pytest.raises(ConnectionRefusedError):
            ask("GET", "/jobs")


@pytest.mark.parametrize("steps", range(6))
def test_connection_made_while_the_rest_server_closes_is_closed(
    cluster: ThreadedCluster, counting: Counting, steps: int
) -> None:
    """*steps*: steps of the event loop between the connection and the call of close."""
    server = RestServer(counting, settings())

    async def connect_and_close() -> socket.socket:
        host, _, port = server.url.removeprefix("http://").partition(":")
        client = socket.create_connection((host, int(port)))
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.create_task(server.close())
        return client

    cluster.session.run(server.start())
    with closing(cluster.session.run(connect_and_close())) as client:
        assert until_closed(client) == b""


def test_concurrent_requests_for_the_same_overview_ask_the_dispatcher_once(
    cluster: ThreadedCluster,
) -> None:
    """RE-12."""
    counting = Counting(cluster)
    with served(cluster, counting) as ask, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: ask.get("/jobs/overview"), range(24)))
    assert all(it == answers[0] for it in answers)
    assert counting.questions == ["list the jobs"]


def test_same_answer_is_encoded_as_json_only_once() -> None:
    written = WrittenOnce()
    first, second = (1,), (2,)
    bodies = iter([{"of": "the first"}, {"of": "the second"}, {"of": "the first again"}])
    texts = [written.of(source, lambda: next(bodies)).text for source in (first, first, second)]
    assert texts == ['{"of":"the first"}', '{"of":"the first"}', '{"of":"the second"}']
    assert written.of(first, lambda: next(bodies)).text == '{"of":"the first again"}'


def test_fetched_cluster_overview_is_used_again_for_the_overview_of_its_jobs(
    cluster: ThreadedCluster,
) -> None:
    counting = Counting(cluster)
    with served(cluster, counting) as ask:
        ask.get("/taskmanagers")
        found = ask.get("/overview")
        jobs = ask.get("/jobs")["jobs"]
    assert found["jobs-finished"] == sum(job["status"] == "FINISHED" for job in jobs)
    whole, numbers = "get the overview of the cluster", "get the numbers of the cluster"
    assert counting.questions == [whole, numbers]


def test_overview_requests_do_not_fetch_the_list_of_task_executors(
    cluster: ThreadedCluster,
) -> None:
    counting = Counting(cluster)
    with served(cluster, counting) as ask:
        ask.get("/overview")
        ask.get("/jobs/overview")
        ask.get("/jobmanager/metrics?get=taskSlotsTotal")
    assert sorted(counting.questions) == ["get the numbers of the cluster", "list the jobs"]


@on_virtual_time
async def test_cached_dispatcher_answer_is_used_from_its_arrival_until_it_expires() -> None:
    looks = SharedLooks(3.0)

    async def fetch() -> int:
        await asyncio.sleep(1)
        return 7

    assert looks.answer_to("x") is None
    fetching = asyncio.ensure_future(looks.look("x", fetch))
    await asyncio.sleep(0.5)
    assert looks.answer_to("x") is None
    assert await fetching == 7 == looks.answer_to("x")
    await asyncio.sleep(2.1)
    assert looks.answer_to("x") is None


@on_virtual_time
async def test_cached_dispatcher_answer_is_fetched_again_once_expired_or_after_an_error() -> None:
    """RE-12."""
    fetched: list[int] = []
    looks = SharedLooks(3.0)

    async def fetch() -> int:
        await asyncio.sleep(1)
        fetched.append(len(fetched))
        if len(fetched) == 1:
            raise RpcConnectionError("away")
        return len(fetched)

    first = [asyncio.ensure_future(looks.look("x", fetch)) for _ in range(3)]
    errors = await asyncio.gather(*first, return_exceptions=True)
    assert [type(error) for error in errors] == [RpcConnectionError] * 3
    gone = asyncio.ensure_future(looks.look("x", fetch))
    await asyncio.sleep(0.5)
    gone.cancel()
    assert await looks.look("x", fetch) == 2  # whoever has begun it has gone
    await asyncio.sleep(1.9)
    assert await looks.look("x", fetch) == 2
    await asyncio.sleep(0.2)
    assert await looks.look("x", fetch) == 3
    assert len(fetched) == 3


def test_request_body_that_is_too_long_malformed_or_multipart_is_refused(ask: Asker) -> None:
    """RE-03, RE-07, RE-08."""
    path = "/savepoint-disposal"
    assert ask("POST", path, raw=b"x" * (2 << 20)).status == 413
    deep = b"[" * 200_000
    for raw in (b"{", b"[]", b"1", b"\xff", b'{"savepoint-path": 7}', deep):
        answer = ask("POST", path, raw=raw)
        assert answer.status == 400, raw[:20]
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    files = ask("POST", path, raw=b"--x\r\n\r\n--x--\r\n", headers=headers)
    assert (files.status, files.error) == (400, "no files can be uploaded here")


PATHS = st.lists(
    st.one_of(
        st.sampled_from(["jobs", "v1", "..", "%2e%2e", "overview", "checkpoints", "vertices"]),
        st.sampled_from(["0" * 32, "%00", "%2f", "a" * 3000, "savepoints", "config", "-1"]),
        st.text(
            st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/?#"), max_size=8
        ),
    ),
    max_size=6,
)


@given(
    method=st.sampled_from(["GET", "POST", "PATCH", "PUT", "HEAD", "OPTIONS", "DELETE"]),
    parts=PATHS,
    raw=st.one_of(st.none(), st.binary(max_size=60), st.just(b'{"triggerId": "x"}')),
)
@hypothesis_settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_requests_are_never_answered_with_a_server_error(
    method: str, parts: list[str], raw: bytes | None, ask: Asker
) -> None:
    if method == "DELETE" and parts[-1:] == ["cluster"]:
        return
    answer = ask(method, "/" + "/".join(parts), raw=raw)
    assert answer.status < 500, answer


@pytest.mark.parametrize("sent", ["GET /jobs HTTP/1.1", "GET /jobs HTTP/1.1\r\nHost", "NOTHING"])
def test_malformed_http_is_answered_with_400_and_not_logged(
    sent: str, ask: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = ask.place.split(":")
    with closing(socket.create_connection((host, int(port)))) as client:
        client.settimeout(30)
        client.sendall(f"{sent}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.0 400 ")
    assert caplog.text == ""


def test_half_sent_request_does_not_delay_other_clients(ask: Asker) -> None:
    host, port = ask.place.split(":")
    with closing(socket.create_connection((host, int(port)))) as slow:
        slow.sendall(
            b"POST /savepoint-disposal HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        )
        assert ask("GET", "/overview").status == 200


def until_closed(client: socket.socket) -> bytes:
    """What the endpoint sends until it closes the connection, within ten seconds each time."""
    client.settimeout(10)
    said = b""
    try:
        while piece := client.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_idle_connection_is_closed_after_the_timeout(cluster: ThreadedCluster) -> None:
    """Also after half a request and after an answer; not while a request is being answered."""
    blocked = Blocked(cluster, "list the jobs")
    idle = {"rest_idleness__timeout": "200 ms", **READS}
    with served(cluster, blocked, **idle) as ask, ThreadPoolExecutor() as threads:
        host, port = ask.place.split(":")
        waiting = threads.submit(ask, "GET", "/jobs")
        blocked.is_asked.wait(10)
        whole = b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for begun, answer in ((b"", b""), (whole[:-2], b""), (whole, b"HTTP/1.1 200 OK")):
            with closing(socket.create_connection((host, int(port)))) as client:
                client.sendall(begun)
                assert until_closed(client)[:15] == answer
        blocked.go_on()
        assert waiting.result(10).status == 200


def test_connection_in_use_stays_open_longer_than_an_idle_connection(
    cluster: ThreadedCluster, counting: Counting
) -> None:
    with served(cluster, counting, rest_idleness__timeout="200 ms", **READS) as ask:
        host, port = ask.place.split(":")
        with closing(HTTPConnection(host, int(port), timeout=10)) as used:
            used.connect()
            first = used.sock
            with closing(socket.create_connection((host, int(port)))) as idle:
                is_closed = False
                while not is_closed:
                    used.request("GET", "/config")
                    assert used.getresponse().read()
                    is_closed, _, _ = map(bool, select.select([idle], [], [], 0))
            used.request("GET", "/config")
            assert used.getresponse().status == 200
            assert used.sock is first


def test_request_beyond_the_limit_of_concurrent_requests_is_answered_with_429(
    cluster: ThreadedCluster,
) -> None:
    blocked = Blocked(cluster, "list the jobs")
    limit = {"rest_server_max__requests": "1"}
    with served(cluster, blocked, **limit) as ask, ThreadPoolExecutor() as threads:
        waiting = threads.submit(ask, "GET", "/jobs")
        blocked.is_asked.wait(10)
        assert ask("GET", "/overview").status == 429
        blocked.go_on()
        assert waiting.result(10).status == 200
        assert ask("GET", "/overview").status == 200


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_request_with_the_token_is_answered_and_without_it_refused_with_401(
    cluster: ThreadedCluster, counting: Counting
) -> None:
    with served(cluster, counting) as with_token:
        ask = Asker(f"http://{with_token.place}", None)
        refused = [
            ask("GET", "/overview"),
            ask("GET", "/overview", headers=bearer(TOKEN[:-1])),
            ask("GET", "/overview", headers=bearer(TOKEN + "x")),
            ask("GET", "/overview", headers={"Authorization": f"Basic {TOKEN}"}),
            ask("GET", "/nothing"),
        ]
        assert [it.status for it in refused] == [401] * 5
        assert refused[0].headers["www-authenticate"] == "Bearer"
        assert counting.questions == []
        assert ask("GET", "/overview", headers=bearer(TOKEN)).status == 200


@pytest.mark.parametrize("values", [{"rest_token": ""}, READS, {"rest_token": "", **READS}])
def test_every_request_that_changes_something_is_refused_with_401_without_the_token(
    values: dict[str, str], cluster: ThreadedCluster, counting: Counting
) -> None:
    """Anonymous read access allows no change, by any method and in any API version."""
    with served(cluster, counting, **values) as with_token:
        ask = Asker(f"http://{with_token.place}", None)
        document = ask.get("/openapi.json")
        ids = {"{job}": "0" * 32, "{vertex}": "0" * 32, "{trigger}": "0" * 32}
        refused = []
        for path, methods in document["paths"].items():
            for name, value in ids.items():
                path = path.replace(name, value)
            for method in (*map(str.upper, methods), "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                for version in ("", "/v1"):
                    if ask(method, version + path, {}).status == 401:
                        refused.append(f"{method} {path}")
                    else:
                        assert method == "GET", path
        assert {"DELETE /cluster", f"GET /jobs/{'0' * 32}/yarn-cancel"} <= set(refused)
        assert ask("GET", "/overview").status == 200
        changing = {"cancel", "shut", "take", "dispose", "resize", "keep"}
        assert not {question.split()[0] for question in counting.questions} & changing


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example:8081"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 200),
        ({"Host": "localhost:8081"}, 200),
        ({"Host": "[::1]:8081"}, 200),
    ],
)
def test_request_from_a_page_of_another_site_is_refused_with_403(
    headers: dict[str, str], status: int, cluster: ThreadedCluster, counting: Counting
) -> None:
    with served(cluster, counting, **READS) as with_token:
        ask = Asker(f"http://{with_token.place}", None)
        assert ask("GET", "/config", headers=headers).status == status


def test_host_header_matches_a_bind_address_written_in_capitals(cluster: ThreadedCluster) -> None:
    """Clients send the host in lower case."""
    runner = web.AppRunner(application([], settings(rest_bind__address="Node-1.Example", **READS)))

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    ask = Asker(cluster.session.run(start()), None)
    assert ask("GET", "/", headers={"Host": "node-1.example:8081"}).status == 200
    assert ask("GET", "/", headers={"Host": "node-2.example:8081"}).status == 403
    cluster.session.run(runner.cleanup())


@pytest.mark.parametrize("token", ["tooshort", "with a space in it"])
def test_error_about_an_invalid_token_does_not_show_the_token(token: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.token") as refused:
        ReadableConfig({"rest.token": token})
    assert token not in str(refused.value)
    assert refused.value.__cause__ is None


def test_repr_of_the_configuration_does_not_show_the_token() -> None:
    assert TOKEN not in repr(ReadableConfig({"rest.token": TOKEN}))


def test_second_handler_for_a_route_raises_an_error() -> None:
    """RE-09."""

    async def handler(request: object) -> Answer:
        return Answer({})

    with pytest.raises(RuntimeError, match="GET /x"):
        application([("GET", "/x", handler), ("GET", "/x", handler)], settings())


def test_server_takes_a_free_port_of_its_range_and_fails_if_none_is_free(
    cluster: ThreadedCluster, counting: Counting
) -> None:
    """RE-09."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with served(cluster, counting, rest_bind__port=f"{port}-{port + 20}") as ask:
            assert port < int(ask.place.split(":")[1]) <= port + 20
        server = RestServer(counting, settings(rest_bind__port=str(port)))
        with pytest.raises(ConfigurationError, match=f"no port is free .*: {port}"):
            cluster.session.run(server.start())
        cluster.session.run(server.close())


@pytest.mark.parametrize("text", ["", "x", "8081-", "9-8", "70000", "1-2-3", "-1"])
def test_malformed_port_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.bind-port"):
        ports_of(text)


def test_certificate_without_a_key_or_a_missing_file_is_refused(
    cluster: ThreadedCluster, counting: Counting, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        RestSettings.of(ReadableConfig({"rest.ssl.key": "x"}))
    missing = str(tmp_path / "none.pem")
    tls = settings(rest_ssl_certificate=missing, rest_ssl_key=missing)
    server = RestServer(counting, tls)
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        cluster.session.run(server.start())
    cluster.session.run(server.close())


def test_public_endpoint_without_tls_logs_a_warning_with_the_options_to_set(
    cluster: ThreadedCluster, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    with served(cluster, counting, rest_bind__address="0.0.0.0"):
        pass
    assert "set rest.ssl.certificate and rest.ssl.key" in caplog.text


def test_dashboard_configuration_has_the_current_time_zone_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        winter, summer = (
            cluster_json.dashboard_configuration(3.0, datetime.fromisoformat(day).timestamp())
            for day in ("2026-01-15T12:00+00:00", "2026-07-15T12:00+00:00")
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    hour = 3_600_000
    assert (winter["timezone-name"], winter["timezone-offset"]) == ("CET", hour)
    assert (summer["timezone-name"], summer["timezone-offset"]) == ("CEST", 2 * hour)


def test_overview_counts_the_jobs_of_each_status(ask: Asker) -> None:
    """RE-47."""
    overview = ask.get("/overview")
    assert "taskmanagers-blocked" not in overview
    statuses = [it["status"] for it in ask.get("/jobs")["jobs"]]
    assert overview["jobs-finished"] == statuses.count("FINISHED")
