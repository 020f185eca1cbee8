"""OpenTelemetry spans of actions that take time, where OpenTelemetry is set up.

Nothing is imported and no span is sent unless ``traces.setup-hook`` names a function that sets up
OpenTelemetry, or the starter of the process has set it up, as Ray does with ``ray start
--tracing-startup-hook``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobID
from flinkray.core.options import TRACES_SETUP_HOOK
from flinkray.scheduler.reports.spans import Span

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

_SCOPE = "flinkray"
_LONGEST_FLUSH = 2.0
"""Seconds that a process waits for its last spans to be sent."""


class Traces:
    """Sends spans. Each span is a trace of its own, because a stream job never ends its trace."""

    def __init__(self, configuration: ReadableConfig) -> None:
        self._provider = _provider(configuration.get(TRACES_SETUP_HOOK))

    def tell(
        self, spans: Iterable[Span], job_id: JobID, job_name: str, *, of_call: bool = False
    ) -> None:
        """Send spans of actions that have ended. *of_call*: the spans belong to the trace of the
        call that is being handled, if it has one."""
        if self._provider is None:
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import Status, StatusCode

        tracer = self._provider.get_tracer(_SCOPE)
        context = None if of_call else Context()
        for span in spans:
            attributes = {"jobId": str(job_id), "jobName": job_name, **span.attributes}
            told = tracer.start_span(
                span.name, context, attributes=attributes, start_time=_nanoseconds(span.begin)
            )
            if span.failure is not None:
                told.set_status(Status(StatusCode.ERROR, span.failure))
            told.end(_nanoseconds(span.end))

    async def flush(self) -> None:
        """Wait a short time until the spans are sent. Call this before the process ends."""
        # only providers of the OpenTelemetry SDK have this method
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            milliseconds = int(_LONGEST_FLUSH * 1000)
            await asyncio.get_running_loop().run_in_executor(None, flush, milliseconds)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


@cache
def _provider(hook: str | None) -> TracerProvider | None:
    """Return the tracer provider, set up once per process. None if there are no traces."""
    if hook is not None:
        module, _, function = hook.partition(":")
        try:
            provider: TracerProvider | None = getattr(importlib.import_module(module), function)()
        except Exception:
            log.exception("there are no traces: traces.setup-hook %s failed", hook)
            return None
        if provider is not None:
            return provider
    elif "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_tracer_provider

    return get_tracer_provider()
