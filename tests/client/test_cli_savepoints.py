"""``flinkray savepoint``, ``stop`` and ``checkpoint trigger``: what they print where, how they
exit, and that a request whose answer is lost is asked again as the same one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flinkray.actors.gateways.snapshots import SnapshotType
from flinkray.client.cli import execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.core.errors import JobError
from flinkray.core.ids import JobID
from flinkray.scheduler.checkpoints.failures import (
    CheckpointError,
    CheckpointFailureReason,
    StopWithSavepointError,
)
from tests.client.scripted_cluster import World, job_graph

UNKNOWN = "0123456789abcdef" * 2

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")


@pytest.fixture
def job_id(client: ClusterClient) -> JobID:
    job = job_graph()
    client.submit(job)
    return job.job_id


def run(client: ClusterClient, *line: str) -> int:
    """One in a test: it closes the client."""
    return execute(line, connect=lambda *_: client)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["savepoint"], "name a job (flinkray list), or --dispose a savepoint"),
        (["savepoint", "4x"], "'4x' is neither a job id (32 hexadecimal digits) nor its beginning"),
        (["savepoint", UNKNOWN, "--dispose", "/savepoints/a"], "--dispose takes no job"),
        (["stop"], "Missing argument 'JOB_ID'"),
        (["stop", "4x"], "'4x' is neither a job id"),
        (["checkpoint", "trigger"], "Missing argument 'JOB_ID'"),
        (["checkpoint", "trigger", "4x"], "'4x' is neither a job id"),
        (["run", "--allow-non-restored-state", "--python", "p.py"], "goes with --from-savepoint"),
        (["run", "--from-savepoint", "s3://[", "--python", "p.py"], "'s3://[' is neither"),
        (["run", "--from-savepoint", "/savepoints/a", "json:loads"], "only programs (--python)"),
    ],
)
def test_invalid_arguments_print_an_error_without_traceback_and_exit_with_2(
    arguments: list[str], text: str, capsys: Output
) -> None:
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [["savepoint", UNKNOWN, "s3://["], ["stop", UNKNOWN, "--savepoint-path", "s3://["]],
)
def test_malformed_savepoint_directory_exits_with_2(
    arguments: list[str], client: ClusterClient, capsys: Output
) -> None:
    assert run(client, *arguments) == 2
    assert "error: 's3://[' is neither a path nor a URI: " in capsys.readouterr().err


@pytest.mark.parametrize("name", [["savepoint"], ["stop"], ["checkpoint", "trigger"]], ids=" ".join)
def test_command_for_an_unknown_job_exits_with_4(
    name: list[str], client: ClusterClient, capsys: Output
) -> None:
    assert run(client, *name, UNKNOWN) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: job {UNKNOWN}: not known to this cluster (see: flinkray list)\n"


def test_savepoint_prints_only_the_path_and_warns_of_operators_without_uid(
    world: World,
    client: ClusterClient,
    job_id: JobID,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert run(client, "savepoint", str(job_id), "savepoints/../here") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/here/savepoint-1\n", "a relative path is this process's"
    assert err == f"taking a savepoint of job {job_id}\n"
    assert "without a uid: 'Map'" in caplog.text
    (request,) = world.snapshots
    assert request.kind is SnapshotType.SAVEPOINT


@pytest.mark.parametrize(
    ("more", "kind", "how"),
    [
        ([], SnapshotType.SUSPEND_WITH_SAVEPOINT, "stopping"),
        (["--drain"], SnapshotType.TERMINATE_WITH_SAVEPOINT, "draining"),
    ],
    ids=["stop", "drain"],
)
def test_stop_takes_a_savepoint_and_drains_the_job_only_with_option_drain(
    more: list[str],
    kind: SnapshotType,
    how: str,
    world: World,
    client: ClusterClient,
    job_id: JobID,
    capsys: Output,
) -> None:
    assert run(client, "stop", str(job_id), "--savepoint-path", "file:///savepoints", *more) == 0
    out, err = capsys.readouterr()
    assert out == "/savepoints/savepoint-1\n"
    assert err.splitlines() == [
        f"{how} job {job_id} with a savepoint",
        f"job {job_id} has finished",
    ]
    assert [request.kind for request in world.snapshots] == [kind]


def test_checkpoint_trigger_takes_a_checkpoint_and_does_not_warn_of_uids(
    world: World,
    client: ClusterClient,
    job_id: JobID,
    capsys: Output,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run(client, "checkpoint", "trigger", str(job_id)) == 0
    assert capsys.readouterr().out.endswith("savepoint-1\n")
    assert [request.kind for request in world.snapshots] == [SnapshotType.CHECKPOINT]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        (["savepoint"], ["a checkpoint failed: ", "no room"]),
        (["checkpoint", "trigger"], ["a checkpoint failed: ", "no room"]),
        (["stop"], ["checkpoint 7 failed: ", "the savepoint is complete: /savepoints/savepoint-7"]),
    ],
    ids=["savepoint", "checkpoint", "stop"],
)
def test_failed_savepoint_or_checkpoint_exits_with_1_and_shows_the_reason(
    line: list[str],
    texts: list[str],
    world: World,
    client: ClusterClient,
    job_id: JobID,
    capsys: Output,
) -> None:
    reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    failure: JobError = CheckpointError(job_id, reason, cause="no room")
    if line == ["stop"]:
        failure = StopWithSavepointError(job_id, 7, "/savepoints/savepoint-7", "a task failed")

    async def fail(number: int) -> None:
        raise failure

    world.on_snapshot_request = fail
    assert run(client, *line, str(job_id)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith(f"error: job {job_id}: ")
    assert all(text in last for text in texts), last
    assert len(world.snapshots) == 1, "an answer is not asked for again"
    assert "has finished" not in err


@pytest.mark.parametrize("command", ["savepoint", "stop"])
def test_savepoint_request_is_repeated_unchanged_when_the_dispatcher_dies(
    command: str, world: World, client: ClusterClient, job_id: JobID, capsys: Output
) -> None:
    async def die_once(number: int) -> None:
        if number == 1:
            await world.crash()

    world.on_snapshot_request = die_once
    assert run(client, command, str(job_id)) == 0
    assert len(world.snapshots) == 2
    assert world.snapshots[0] == world.snapshots[1]
    assert capsys.readouterr().out.count("savepoint-1") == 1


def test_savepoint_dispose_deletes_the_savepoint(
    world: World, client: ClusterClient, capsys: Output
) -> None:
    world.savepoints += ["/savepoints/a", "/savepoints/b"]
    assert run(client, "savepoint", "--dispose", "/savepoints/a") == 0
    assert world.savepoints == ["/savepoints/b"]
    assert capsys.readouterr() == ("savepoint /savepoints/a is deleted\n", "")


def test_savepoint_dispose_of_a_missing_savepoint_fails_and_deletes_nothing(
    world: World, client: ClusterClient, capsys: Output
) -> None:
    world.savepoints.append("/savepoints/a")
    assert run(client, "savepoint", "--dispose", "/savepoints/b") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: /savepoints/b")
    assert "there is no such directory" in err
    assert world.savepoints == ["/savepoints/a"]


def test_savepoint_dispose_succeeds_although_the_answer_to_its_request_is_lost(
    world: World, client: ClusterClient, capsys: Output
) -> None:
    world.savepoints.append("/savepoints/a")
    world.after_disposal = world.crash
    assert run(client, "savepoint", "--dispose", "/savepoints/a") == 0
    assert world.dispatchers == 2
    assert capsys.readouterr().out == "savepoint /savepoints/a is deleted\n"
