"""Jobs that share a Spark session, on a real cluster."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_nothing
from tests.system.pipelines import Gate

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

SESSION: dict[str, Any] = {"parallelism": 1, "memory": "1g", "session": "shared"}


def told(spark: Any) -> Any:
    """What a guest sees of the session, and then it leaves something behind."""
    jvm = spark.sparkContext._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    seen = (
        pid,
        os.getpid(),
        len(spark.catalog.listTables()),
        spark.conf.get("spark.sql.shuffle.partitions"),
        spark.sparkContext._jsc.getPersistentRDDs().size(),
    )
    frame = spark.range(7)
    frame.createOrReplaceTempView("left_behind")
    frame.cache().count()
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    columns = ["jvm", "process", "tables", "partitions", "cached"]
    return spark.createDataFrame([seen], columns)


def stops(spark: Any) -> None:
    assert spark.range(5).count() == 5
    spark.stop()


def row_of(handle: JobHandle) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = handle.result(timeout=300).to_arrow().to_pylist()
    return row


def session_jobs(client: ClusterClient) -> list[Any]:
    return [job for job in client.list_jobs() if job.name == "Spark session shared"]


def test_jobs_share_a_session_and_nothing_of_each_other(
    client: ClusterClient, gate: Gate, resources_before: dict[str, float]
) -> None:
    handle = client.submit(flinkray.spark_job(told, **SESSION))
    first = row_of(handle)
    (vertex,) = handle.details().vertices
    assert vertex.completed_stages >= 1
    assert vertex.completed_tasks >= 1
    assert client.submit(flinkray.spark_job(stops, **SESSION)).result(timeout=300) is not None

    gated = client.submit(flinkray.spark_job(gate.pipeline(), name="gated", **SESSION))
    wait_until(lambda: len(gate.waiting_tasks()) >= 1, 300, "a Spark task to begin")
    gated.cancel()
    wait_until(lambda: gated.status() is JobStatus.CANCELED, 60, "the job's end")

    # The executor's only core is free again, though the gate has not been opened.
    conf = {"spark.sql.shuffle.partitions": 11}
    last = row_of(client.submit(flinkray.spark_job(told, spark_conf=conf, **SESSION)))

    assert last["jvm"] == first["jvm"]
    assert last["process"] != first["process"]
    assert (first["tables"], first["partitions"]) == (0, "200")
    assert (last["tables"], last["partitions"], last["cached"]) == (0, "11", 0)

    larger = client.submit(flinkray.spark_job(told, **{**SESSION, "memory": "2g"}))
    with pytest.raises(JobExecutionError, match=r"has slots of \(1 CPU, 1g memory\) instead of"):
        larger.result(timeout=300)

    (session,) = session_jobs(client)
    assert session.status is JobStatus.RUNNING
    handle = client.job(session.job_id)
    handle.cancel()
    wait_until(lambda: handle.status() is JobStatus.CANCELED, 60, "the session's end")
    assert not psutil.pid_exists(first["jvm"])
    assert_leaves_nothing(session.job_id, resources_before)
