"""What OpenTelemetry is told of spans."""

from __future__ import annotations

from functools import cache

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from flinkray.actors.shared.traces import Traces
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobID
from flinkray.core.options import TRACES_SETUP_HOOK
from flinkray.scheduler.reports.spans import Span

JOB = JobID(b"j" * 16)
exporter = InMemorySpanExporter()


@cache
def set_up() -> TracerProvider:
    """Sends nothing by itself."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    return provider


async def test_flush_sends_the_trace_spans_with_their_times_and_failures() -> None:
    hook = f"{__name__}:{set_up.__name__}"
    traces = Traces(ReadableConfig({TRACES_SETUP_HOOK.key: hook}))
    spans = [Span("One", 5.0, 6.5, {"number": 1}), Span("Other", 7.0, 7.25, {}, "it broke")]
    traces.tell(spans, JOB, "flights")
    assert exporter.get_finished_spans() == ()
    await traces.flush()
    one, other = exporter.get_finished_spans()
    assert (one.name, one.start_time, one.end_time) == ("One", 5 * 10**9, 65 * 10**8)
    assert dict(one.attributes or {}) == {"jobId": str(JOB), "jobName": "flights", "number": 1}
    assert one.status.status_code is StatusCode.UNSET
    assert (other.start_time, other.end_time) == (7 * 10**9, 725 * 10**7)
    assert (other.status.status_code, other.status.description) == (StatusCode.ERROR, "it broke")
