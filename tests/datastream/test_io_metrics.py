"""What the vertices of a program on a cluster have read and written, as its details tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.client.cli_output import job_details
from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.stuck_functions import FailingAt, OneAtATime


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    return env.set_parallelism(2)


def details_of(cluster: ThreadedCluster, name: str) -> JobDetails:
    (job,) = (job for job in cluster.client.list_jobs() if job.name == name)
    return cluster.client.job(job.job_id).details()


def flow(vertices: tuple[VertexInfo, ...]) -> list[tuple[int | None, int | None]]:
    """Records in and out of each."""
    found = [vertex.io_metrics for vertex in vertices]
    return [(-1, -1) if m is None else (m.records_in, m.records_out) for m in found]


@pytest.mark.parametrize("mode", RuntimeExecutionMode)
def test_finished_job_reports_what_went_through_each_vertex(
    cluster: ThreadedCluster, mode: RuntimeExecutionMode
) -> None:
    env = on(cluster)
    env.set_runtime_mode(mode)
    even = env.from_sequence(1, 1000).rebalance().filter(lambda v: v % 2 == 0)
    even.rebalance().map(lambda v: v).sink_to(DiscardingSink())
    env.execute(f"finished {mode.name}")

    vertices = details_of(cluster, f"finished {mode.name}").vertices

    assert flow(vertices) == [(None, 1000), (1000, 500), (500, None)]
    assert [vertex.measured for vertex in vertices] == [2, 2, 2]
    for reader, writer in zip(vertices[1:], vertices, strict=False):
        assert reader.io_metrics is not None
        assert writer.io_metrics is not None
        assert reader.io_metrics.bytes_in == writer.io_metrics.bytes_out
        assert reader.io_metrics.bytes_in
    each = [execution.io_metrics for execution in vertices[1].executions]
    assert all(one is not None and one.records_in and one.elapsed_ms >= 0 for one in each)


def test_running_job_reports_what_its_tasks_have_read_and_written(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    env = on(cluster).set_parallelism(1)
    env.set_buffer_timeout(1)
    numbers = env.from_source(OneAtATime(10, gate), None, "numbers")
    numbers.rebalance().map(lambda v: v).sink_to(DiscardingSink())
    client = env.execute_async("running")

    wait_until(
        lambda: flow(details_of(cluster, "running").vertices) == [(None, 9), (9, None)],
        150,
        "nine records to have come through",
    )
    text = job_details(details_of(cluster, "running"), 0.0, verbose=True)
    gate.touch()
    client.get_job_execution_result().result(300)

    header, source, _ = text.partition("VERTEX ")[2].splitlines()[:3]
    columns = "RECORDS IN  BYTES IN  RECORDS OUT  BYTES OUT  BUSY  BACK-PRESSURED  COUNTED"
    assert header.split() == columns.split()
    assert source.startswith("Source: numbers")
    assert source.split()[2:5] == ["-", "-", "9"]
    assert flow(details_of(cluster, "running").vertices) == [(None, 10), (10, None)]


def test_failed_job_reports_what_its_tasks_had_read(cluster: ThreadedCluster) -> None:
    env = on(cluster).set_parallelism(1)
    numbers = env.from_source(OneAtATime(10), None, "numbers").rebalance()
    numbers.map(FailingAt(9)).sink_to(DiscardingSink())
    client = env.execute_async("failing")
    client.get_job_execution_result().exception(300)

    source, failed = flow(details_of(cluster, "failing").vertices)
    assert source == (None, 10)
    assert failed == (10, None)
