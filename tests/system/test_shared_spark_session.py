"""Jobs that share a Spark session, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
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


def test_jobs_share_a_spark_session_but_no_tables_settings_or_cached_data(
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
    wait_until(lambda: gated.status() is JobStatus.CANCELED, 300, "the job's end")

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
    wait_until(lambda: handle.status() is JobStatus.CANCELED, 300, "the session's end")
    assert not psutil.pid_exists(first["jvm"])
    assert_leaves_nothing(session.job_id, resources_before)


def jvm_of(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def read_by(spark: Any) -> Any:
    return spark.range(1000).selectExpr("id", f"{jvm_of(spark)}L as read_by")


def passed_by(rows: Any, checkpoint_id: int) -> Any:
    return rows.selectExpr("*", f"{jvm_of(rows.sparkSession)}L as passed_by")


def test_spark_stages_of_a_stream_share_one_spark_session(
    client: ClusterClient, tmp_path: Path
) -> None:
    shared: dict[str, Any] = {"executors": 1, "memory": "1g", "session": "shared"}
    folder = str(tmp_path / "rows")

    def taken_by(rows: Any, checkpoint_id: int) -> None:
        taken = rows.selectExpr("*", f"{jvm_of(rows.sparkSession)}L as taken_by")
        taken.write.mode("overwrite").parquet(f"{folder}/checkpoint={checkpoint_id}")

    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.enable_checkpointing(500)
    rows = env.from_spark(read_by, **shared)
    rows.through_spark(passed_by, **shared).to_spark(taken_by, **shared)
    env.execute("three guests")

    found = pq.read_table(folder, partitioning=None).to_pylist()
    assert sorted(row["id"] for row in found) == [*range(1000)]
    jvms = {row[name] for row in found for name in ("read_by", "passed_by", "taken_by")}
    assert len(jvms) == 1
    (session,) = [job for job in session_jobs(client) if not job.status.is_terminal]
    handle = client.job(session.job_id)
    handle.cancel()
    wait_until(lambda: handle.status() is JobStatus.CANCELED, 300, "the session's end")
    assert not psutil.pid_exists(jvms.pop())


def guests_at_work(spark: Any) -> set[str]:
    """Whose commands the session's JVM works on, or waits for."""
    threads = spark.sparkContext._jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
    return set(re.findall("<(flinkray-[^>]+)>", threads))


def test_next_attempt_begins_only_after_the_dead_attempts_spark_work_has_ended(
    client: ClusterClient, tmp_path: Path
) -> None:
    """Otherwise the dead attempt might clean up where the next attempt writes."""

    def function(spark: Any) -> None:
        is_first = not list(tmp_path.glob("*.json"))
        at_work = guests_at_work(spark)
        (tmp_path / f"{os.getpid()}.json").write_text(json.dumps(sorted(at_work)))
        if is_first:  # a command that goes on without the process, and that nobody cancels
            spark.sparkContext._jvm.java.lang.Thread.sleep(10_000)

    restarts = FixedDelayRestart(1, 0.0)
    handle = client.submit(flinkray.spark_job(function, **SESSION, restart_strategy=restarts))
    first = wait_until(lambda: next(tmp_path.glob("*.json"), None), 300, "the first attempt")
    os.kill(int(first.stem), signal.SIGKILL)
    handle.result(timeout=300)

    at_work = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    (of_first,) = at_work.pop(first.stem)
    ((of_second,),) = at_work.values()
    assert of_first != of_second
