"""What a driver's JVM leaves behind; shells stand for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flinkray.spark.jvm import DriverJvm, SparkStartError
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
