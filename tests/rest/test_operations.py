"""Savepoints, checkpoints and what else takes long (RE-20 to RE-24, RE-34, RE-35)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.client.client_session import session_of
from flinkray.core.ids import JobID, TriggerID
from flinkray.datastream import Configuration, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rest.errors import RestError
from flinkray.rest.operations import Operations
from flinkray.rest.server import RestServer
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import wait_until
from tests.client.scripted_cluster import scripted_cluster
from tests.datastream.tallies import settings
from tests.rest.conftest import settings as settings_of_rest
from tests.rest.http import Asker

UNKNOWN = JobID(bytes(16)).hex()


@pytest.fixture
def job(cluster: ThreadedCluster, ask: Asker, folder: Path) -> Iterator[str]:
    """A stream that runs until it is ended."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(settings(folder, "1 h")))
    source = DataGeneratorSource(lambda n: n, 10**9, 1000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.sink_to(DiscardingSink())
    job_id = env.execute_async("numbers").get_job_id().hex()

    def all_run() -> bool:
        counts = ask.get(f"/jobs/{job_id}")["status-counts"]
        return bool(counts["RUNNING"]) and counts["RUNNING"] == sum(counts.values())

    wait_until(all_run, 150, "all tasks to run")
    yield job_id
    ask("PATCH", f"/jobs/{job_id}")
    wait_until(
        lambda: ask.get(f"/jobs/{job_id}/execution-result")["status"]["id"] == "COMPLETED",
        150,
        "the job's end",
    )


def outcome(ask: Asker, path: str) -> Any:
    def completed() -> dict[str, Any] | None:
        polled: dict[str, Any] = ask.get(path)
        return polled if polled["status"]["id"] == "COMPLETED" else None

    return wait_until(completed, 150, "the operation's end")["operation"]


def test_repeated_savepoint_request_with_the_same_trigger_id_takes_one_savepoint(
    job: str, ask: Asker, folder: Path
) -> None:
    """RE-20, RE-21, RE-22."""
    trigger = TriggerID.generate().hex()
    wanted = {"target-directory": str(folder), "cancel-job": False, "triggerId": trigger}
    answers = [ask("POST", f"/v1/jobs/{job}/savepoints", wanted) for _ in range(2)]
    assert [(it.status, it.body) for it in answers] == [(202, {"request-id": trigger})] * 2
    location = outcome(ask, f"/v1/jobs/{job}/savepoints/{trigger}")["location"]
    assert [str(found) for found in folder.glob("savepoint-*")] == [location]
    gone = ask("POST", "/savepoint-disposal", {"savepoint-path": location})
    assert gone.status == 200
    assert outcome(ask, f"/savepoint-disposal/{gone.body['request-id']}") == {}
    assert not Path(location).exists()


def test_stop_request_stops_the_job_with_a_savepoint(job: str, ask: Asker, folder: Path) -> None:
    wanted = {"targetDirectory": str(folder), "drain": True, "formatType": "CANONICAL"}
    trigger = ask("POST", f"/jobs/{job}/stop", wanted).body["request-id"]
    location = outcome(ask, f"/jobs/{job}/savepoints/{trigger}")["location"]
    assert Path(location).parent == folder
    assert ask.get(f"/jobs/{job}/status") == {"status": "FINISHED"}


def test_checkpoint_request_takes_a_checkpoint_as_the_job_is_configured(
    job: str, ask: Asker
) -> None:
    """RE-35."""
    trigger = ask("POST", f"/jobs/{job}/checkpoints").body["request-id"]
    number = outcome(ask, f"/jobs/{job}/checkpoints/{trigger}")["checkpointId"]
    latest = ask.get(f"/jobs/{job}/checkpoints")["latest"]["completed"]
    assert latest["id"] == number
    for kind in ("INCREMENTAL", "FULL"):
        refused = ask("POST", f"/jobs/{job}/checkpoints", {"checkpointType": kind})
        assert (refused.status, kind in refused.error) == (400, True)


def test_invalid_savepoint_stop_and_disposal_requests_are_refused_at_once(
    job: str, ask: Asker, folder: Path
) -> None:
    """RE-34."""
    nowhere = ask("POST", f"/jobs/{job}/savepoints", {})
    assert (nowhere.status, "savepoint-dir" in nowhere.error) == (400, True)
    relative = ask("POST", f"/jobs/{job}/savepoints", {"target-directory": "here"})
    assert (relative.status, "'here'" in relative.error) == (400, True)
    native = {"target-directory": str(folder), "formatType": "NATIVE"}
    assert ask("POST", f"/jobs/{job}/savepoints", native).status == 400
    assert ask("POST", f"/jobs/{job}/savepoints", {"cancel-job": True}).status == 400
    assert ask("POST", f"/jobs/{job}/stop", {"drain": "yes"}).status == 400
    assert ask("POST", f"/jobs/{job}/stop", {"triggerId": "x"}).status == 400
    assert ask("POST", f"/jobs/{UNKNOWN}/stop", {}).status == 404
    assert ask("POST", "/savepoint-disposal", {}).status == 400
    missing = ask("POST", "/savepoint-disposal", {"savepoint-path": str(folder / "none")})
    assert missing.status == 404


def test_savepoint_outside_the_configured_directories_is_neither_written_nor_deleted(
    job: str, ask: Asker, folder: Path, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Otherwise anyone who can reach the endpoint writes into any directory of its user."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir(exist_ok=True)
    (folder / "link").symlink_to(elsewhere)
    path = f"/jobs/{job}/savepoints"
    for directory in (elsewhere, folder / "link", f"{folder}/../elsewhere", f"file:{elsewhere}"):
        for refused in (
            ask("POST", path, {"target-directory": str(directory)}),
            ask("POST", f"/jobs/{job}/stop", {"targetDirectory": str(directory)}),
            ask("POST", "/savepoint-disposal", {"savepoint-path": f"{directory}/a"}),
        ):
            assert (refused.status, "rest.savepoint-dirs" in refused.error) == (403, True)
    assert list(elsewhere.iterdir()) == []
    others = settings_of_rest(rest_savepoint__dirs=f"/nowhere; {elsewhere}")
    server = RestServer(cluster.session.dispatcher, others)
    cluster.session.run(server.start())
    try:
        ask_other = Asker(server.url)
        begun = ask_other("POST", path, {"target-directory": str(elsewhere)})
        taken = outcome(ask_other, f"{path}/{begun.body['request-id']}")["location"]
        assert Path(taken).parent == elsewhere
        disposal = ask_other("POST", "/savepoint-disposal", {"savepoint-path": taken})
        assert outcome(ask_other, f"/savepoint-disposal/{disposal.body['request-id']}") == {}
        assert list(elsewhere.iterdir()) == []
    finally:
        cluster.session.run(server.close())


def test_refused_savepoint_may_be_requested_again_with_the_same_trigger_id(
    job: str, ask: Asker, folder: Path
) -> None:
    path, trigger = f"/jobs/{job}/savepoints", TriggerID.generate().hex()
    assert ask("POST", path, {"triggerId": trigger}).status == 400
    again = ask("POST", path, {"triggerId": trigger, "target-directory": str(folder)})
    assert (again.status, again.body) == (202, {"request-id": trigger})
    assert Path(outcome(ask, f"{path}/{trigger}")["location"]).parent == folder


@pytest.mark.parametrize(
    "location",
    [
        "",
        "here",
        "~",
        "file:here",
        "/a\0b",
        "file:///a%00b",
        "/a\ud800",
        "http://[",
        "unheard-of://x",
        f"/{'x' * 300}",
    ],
)
def test_malformed_savepoint_location_is_refused_and_the_job_master_survives(
    location: str, job: str, ask: Asker
) -> None:
    path = f"/jobs/{job}/savepoints"
    refused = [
        ask("POST", path, {"target-directory": location}),
        ask("POST", "/savepoint-disposal", {"savepoint-path": location}),
    ]
    for it in refused:
        assert it.status in (400, 403, 404), it
        assert it.body["errors"]
    assert ask.get(f"/jobs/{job}/progress")["failovers"] == 0


def test_savepoint_disposal_succeeds_although_the_first_answer_is_lost() -> None:
    """The next Dispatcher does not find the savepoint, because it is deleted already."""
    with scripted_cluster() as (world, client):
        world.savepoints.append("/savepoints/a")
        world.after_disposal = world.crash
        server = RestServer(session_of(client).dispatcher, settings_of_rest())
        session_of(client).run(server.start())
        ask = Asker(server.url)
        begun = ask("POST", "/savepoint-disposal", {"savepoint-path": "/savepoints/a"})
        assert outcome(ask, f"/savepoint-disposal/{begun.body['request-id']}") == {}
        assert world.dispatchers == 2
        session_of(client).run(server.close())


def test_polling_an_unknown_operation_is_answered_with_404(job: str, ask: Asker) -> None:
    """RE-23."""
    trigger = TriggerID.generate().hex()
    for path in (f"/jobs/{job}/savepoints", f"/jobs/{job}/checkpoints", "/savepoint-disposal"):
        unknown = ask("GET", f"{path}/{trigger}")
        assert unknown.status == 404
        assert unknown.error == f"Operation not found under key: {trigger}"
    assert ask("GET", f"/jobs/{job}/savepoints/x").status == 400


def key() -> tuple[str, TriggerID]:
    return "test", TriggerID.generate()


@on_virtual_time
async def test_failed_operation_has_a_failure_cause_in_the_format_of_flinks_clients() -> None:
    operations, failing = Operations(60.0), key()

    async def perform() -> dict[str, Any]:
        await asyncio.sleep(1)
        raise RestError(400, "no room")

    await operations.start(failing, perform, "failureCause")
    assert operations.poll(failing) == {"status": {"id": "IN_PROGRESS"}}
    await asyncio.sleep(1)
    polled = operations.poll(failing)
    assert polled["status"] == {"id": "COMPLETED"}
    assert set(polled["operation"]["failureCause"]) == {
        "class",
        "stack-trace",
        "serialized-throwable",
    }


@on_virtual_time
async def test_result_of_an_operation_is_kept_for_the_configured_time() -> None:
    """RE-24."""
    operations, done = Operations(60.0), key()

    async def perform() -> dict[str, Any]:
        return {"location": "there"}

    await operations.start(done, perform)
    await asyncio.sleep(59)
    assert operations.poll(done)["operation"] == {"location": "there"}
    await asyncio.sleep(2)
    with pytest.raises(RestError, match="not found"):
        operations.poll(done)


@on_virtual_time
async def test_operation_restarted_after_a_refusal_does_not_expire_early() -> None:
    """A client may use the id of a refused operation again."""
    operations, asked_twice = Operations(60.0), key()
    may_end = asyncio.Event()

    async def refuse() -> dict[str, Any]:
        raise RestError(400, "no room")

    async def perform() -> dict[str, Any]:
        await may_end.wait()
        return {"location": "there"}

    with pytest.raises(RestError, match="no room"):
        await operations.start(asked_twice, refuse)
    await asyncio.sleep(59)
    await operations.start(asked_twice, perform)
    await asyncio.sleep(2)
    assert operations.poll(asked_twice) == {"status": {"id": "IN_PROGRESS"}}
    may_end.set()
    await asyncio.sleep(1)
    assert operations.poll(asked_twice)["operation"] == {"location": "there"}


@on_virtual_time
async def test_closing_the_rest_server_waits_until_results_of_operations_are_fetched() -> None:
    """RE-24."""
    operations, done = Operations(60.0), key()
    may_end = asyncio.Event()

    async def perform() -> dict[str, Any]:
        await may_end.wait()
        return {}

    await operations.start(done, perform)
    closing = asyncio.ensure_future(operations.close(50.0))
    await asyncio.sleep(1)
    with pytest.raises(RestError, match="closed"):
        await operations.start(key(), perform)
    may_end.set()
    await asyncio.sleep(1)
    assert not closing.done()
    operations.poll(done)
    await asyncio.wait_for(closing, 1)


@on_virtual_time
async def test_closing_the_rest_server_waits_for_an_operation_at_most_until_its_timeout() -> None:
    operations = Operations(60.0)
    never = asyncio.Event()

    async def perform() -> dict[str, Any]:
        await never.wait()
        return {}

    await operations.start(key(), perform)
    began = asyncio.get_running_loop().time()
    await operations.close(5.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0)
