"""The archive of Spark's classes.  That the JVMs of a stage map it: test_stage."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.spark import class_data
from flinkray.spark.environment import (
    CACHE_VARIABLE,
    JavaInstallation,
    SparkEnvironment,
    find_java,
)
from flinkray.spark.jvm import SparkStartError

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
