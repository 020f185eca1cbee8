"""Passes the caller's trace context on with each call, by OpenTelemetry if it is installed.

What the global propagator of OpenTelemetry injects at the caller is extracted and made current
around the handler; so spans that a handler starts are children of the caller's span. This module
makes no spans. Without OpenTelemetry, or while nothing in the process has imported it, the trace
context of a call is passed on unchanged to the calls that its handler makes.
"""

from __future__ import annotations

import importlib.util
import sys
from contextvars import ContextVar
from typing import Any

trace_context: ContextVar[dict[str, str] | None] = ContextVar("trace_context", default=None)
"""The trace context of the call that is being handled; None: the call carried none."""

_CONTEXT_MODULE = "opentelemetry.context"
_is_installed = (
    importlib.util.find_spec("opentelemetry") is not None
    and importlib.util.find_spec("opentelemetry.propagate") is not None
)
_modules = sys.modules


def outgoing_trace() -> dict[str, str] | None:
    """Return the trace context to send with a call that is made now; None: there is none."""
    if _CONTEXT_MODULE not in _modules:
        return trace_context.get()  # nobody can have begun a span
    current = _modules[_CONTEXT_MODULE].get_current()
    if not current:
        return trace_context.get()
    return _inject(current) or trace_context.get()


def enter_trace(trace: dict[str, str]) -> None:
    """Make *trace* current for the rest of the running context, which is the handler's own."""
    trace_context.set(trace)
    if _is_installed:
        from opentelemetry import context, propagate

        # never detached: the context is not used after the handler
        context.attach(propagate.extract(trace))


def _inject(current: Any) -> dict[str, str]:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=current)
    return carrier
