"""Spans of a cluster, as OpenTelemetry's SDK has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from flinkray.core.errors import DuplicateJobSubmissionError
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.common import WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.testing.function_jobs import python_job
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until

HOOK = "tests.actors.test_traces:set_up"
RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "1 ms",
    "execution.checkpointing.interval": "50 ms",
}
exporter = InMemorySpanExporter()


@cache
def set_up() -> TracerProvider:
    """What a cluster of these tests is told to call."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def fails() -> None:
    raise LookupError("no collector")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    exporter.clear()
    configuration = {**RESTARTS, "traces.setup-hook": HOOK}
    with threaded_cluster(str(tmp_path), configuration=configuration) as cluster:
        yield cluster


def told(name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def endless(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.set_parallelism(2).enable_checkpointing(50)
    source = DataGeneratorSource(int, 10**9, 1000.0)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").sink_to(DiscardingSink())
    return env


def test_trace_spans_cover_a_job_from_its_submission(cluster: ThreadedCluster) -> None:
    job = endless(cluster).execute_async("counts")
    wait_until(lambda: told("Checkpoint"), 300, "a checkpoint")
    cluster.crash("TaskProcess")
    wait_until(lambda: told("Failover"), 300, "the end of the failover")
    job.cancel().result(300)
    names = [span.name for span in exporter.get_finished_spans()]
    assert names[:2] == ["JobSubmission", "JobInitialization"]
    (failover,) = told("Failover")
    (begun,) = told("JobInitialization")
    (submitted,) = told("JobSubmission")
    for span in exporter.get_finished_spans():
        attributes = dict(span.attributes or {})
        assert attributes["jobId"] == str(job.get_job_id())
        assert attributes["jobName"] == "counts"
        assert span.parent is None
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
    assert dict(submitted.attributes or {})["numTasks"] == 2
    assert submitted.start_time <= begun.start_time <= failover.start_time  # type: ignore[operator]
    assert "died" in str(dict(failover.attributes or {})["cause"])
    checkpoint = told("Checkpoint")[0]
    assert dict(checkpoint.attributes or {})["checkpointStatus"] == "COMPLETED"
    assert checkpoint.status.status_code is StatusCode.UNSET


def test_span_of_a_refused_submission_has_an_error_status(cluster: ThreadedCluster) -> None:
    graph = python_job(lambda context: None)
    cluster.client.submit(graph).wait(300)
    exporter.clear()
    with pytest.raises(DuplicateJobSubmissionError):
        cluster.client.submit(graph)
    (span,) = told("JobSubmission")
    assert span.status.status_code is StatusCode.ERROR
    assert "was submitted before" in str(span.status.description)


def test_jobs_run_although_the_setup_hook_of_traces_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = {"traces.setup-hook": "tests.actors.test_traces:fails"}
    with threaded_cluster(str(tmp_path), configuration=configuration) as cluster:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
        assert list(env.from_collection([1, 2]).execute_and_collect()) == [1, 2]
    (record,) = [r for r in caplog.records if "traces.setup-hook" in r.getMessage()]
    assert "tests.actors.test_traces:fails failed" in record.getMessage()
    assert "no collector" in caplog.text


def test_span_of_a_submission_is_a_child_of_the_programs_span(cluster: ThreadedCluster) -> None:
    graph = python_job(lambda context: None)

    async def submit() -> None:
        with set_up().get_tracer("program").start_as_current_span("program"):
            await cluster.client.submit_async(graph)

    asyncio.run(submit())
    cluster.client.job(graph.job_id).wait(300)
    (program,), (submission,) = told("program"), told("JobSubmission")
    assert submission.parent is not None
    assert program.context is not None
    assert submission.parent.span_id == program.context.span_id
    assert all(begun.parent is None for begun in told("JobInitialization"))
