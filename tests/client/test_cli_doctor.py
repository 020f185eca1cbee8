"""``flinkray doctor``: what it finds, and the way out that it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.client import node_check
from flinkray.client.check_up import Check, Verdict, check_of_clock, checks_of_node
from flinkray.client.node_check import marked, try_storage


def _said(**others: Any) -> dict[str, Any]:
    return {**node_check.look_around(None, "trial"), **others}


def _of(found: list[Check], subject: str) -> Check:
    (check,) = (check for check in found if check.subject == subject)
    return check


def test_doctor_without_ray_checks_only_this_machine_and_exits_with_1() -> None:
    """Runs in a process of its own, because this process may be connected to a Ray."""
    line = [sys.executable, "-m", "flinkray", "doctor", "--json", "--address", "127.0.0.1:1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    found = {check["subject"]: check for check in json.loads(done.stdout)}
    assert found["flinkray"]["state"] == "GOOD"
    assert found["ray"]["state"] == "BAD"
    assert "nothing answers at the Ray address 127.0.0.1:1" in found["ray"]["text"]
    assert "ray start --head" in found["ray"]["way_out"]


def test_doctor_writes_to_the_storage_and_leaves_no_file(tmp_path: Path) -> None:
    assert try_storage(str(tmp_path), "trial") is None
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_storage_that_the_machines_do_not_share(tmp_path: Path) -> None:
    """Every machine can write and read its own storage, but no node sees the files of another
    node."""
    here, elsewhere = str(tmp_path / "here"), str(tmp_path / "elsewhere")
    with marked(here, "mark") as is_marked:
        assert is_marked
        same = node_check.look_around(here, "trial", "mark")
        other = node_check.look_around(elsewhere, "trial", "mark")
    assert list((tmp_path / "here").iterdir()) == []
    assert _of(list(checks_of_node("a", same, here)), "storage").state is Verdict.GOOD
    check = _of(list(checks_of_node("b", other, here)), "storage")
    assert check.state is Verdict.BAD
    assert "b: " in check.text
    assert "it is another storage than here" in check.text


def test_doctor_does_not_look_for_its_test_file_in_storage_that_it_cannot_write(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with marked(str(tmp_path / "file"), "mark") as is_marked:
        assert not is_marked


def test_doctor_reports_the_error_of_unwritable_storage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = try_storage(str(tmp_path / "file"), "trial")
    assert error is not None
    assert error.startswith("FileExistsError: ")


def test_doctor_shows_the_pip_command_for_a_node_that_cannot_import_flinkray() -> None:
    said = _said(import_error="No module named 'flinkray'", executable="/usr/bin/python3")
    (check,) = checks_of_node("10.0.0.1", said, None)
    assert check.state is Verdict.BAD
    assert "10.0.0.1: /usr/bin/python3 cannot import flinkray" in check.text
    assert check.way_out is not None
    assert f"/usr/bin/python3 -m pip install flinkray=={flinkray.__version__}" in check.way_out


def test_doctor_finds_no_fault_with_a_complete_node() -> None:
    said = _said(shm_total=2**32, shm_free=2**31, java_error=None)
    found = list(checks_of_node("10.0.0.1", {**said, "storage_error": None}, "/data"))
    assert {check.state for check in found} == {Verdict.GOOD}


@pytest.mark.parametrize(("total", "free"), [(2**26, 2**26), (2**32, 2**20)])
def test_doctor_warns_of_little_shared_memory(total: int, free: int) -> None:
    found = list(checks_of_node("10.0.0.1", _said(shm_total=total, shm_free=free), None))
    check = _of(found, "shared memory")
    assert check.state is Verdict.WARNING
    assert check.way_out is not None
    assert "--shm-size" in check.way_out


def test_doctor_warns_of_another_python_version_and_failing_storage_of_a_node() -> None:
    found = list(checks_of_node("a", _said(python="3.9.1", storage_error="OSError: no"), "/data"))
    assert _of(found, "node").state is Verdict.WARNING
    assert _of(found, "storage").state is Verdict.BAD
    assert "a: /data: OSError: no" in _of(found, "storage").text


@pytest.mark.parametrize(
    ("there", "state", "text"),
    [
        (11.0, Verdict.GOOD, "like here, within 2.000 s"),
        (12.5, Verdict.GOOD, "like here, within 2.500 s"),
        (19.0, Verdict.BAD, "a is 7.0 s ahead of this machine"),
        (4.0, Verdict.BAD, "a is 6.0 s behind this machine"),
    ],
)
def test_doctor_reports_a_clock_difference_only_if_longer_than_the_request_took(
    there: float, state: Verdict, text: str
) -> None:
    check = check_of_clock("a", 10.0, there, 12.0)
    assert check.state is state
    assert text in check.text
