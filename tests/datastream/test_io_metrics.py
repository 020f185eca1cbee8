"""What the vertices of a program on a cluster have read and written, as its details tell."""

from __future__ import annotations

import pytest

from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.testing.threaded_cluster import ThreadedCluster


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
def test_finished_job_reports_the_records_and_bytes_that_each_vertex_read_and_wrote(
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
