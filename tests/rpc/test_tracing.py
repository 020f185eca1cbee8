"""The trace context travels with calls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcGateway, oneway
from flinkray.rpc.calls.tracing import enter_trace, outgoing_trace, trace_context

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")

from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider


class TracedGateway(RpcGateway):
    """Says which span it is in."""

    @abstractmethod
    async def where(self, hops: int) -> tuple[str, ...]: ...

    @abstractmethod
    @oneway
    async def note(self) -> None: ...

    @abstractmethod
    async def carried(self) -> dict[str, str] | None: ...


class Traced(RpcEndpoint, TracedGateway):
    """Passes a question on to *next_one*, within a span of its own."""

    def __init__(
        self, service: LocalRpcService, tracer: trace.Tracer, next_one: TracedGateway | None
    ) -> None:
        super().__init__(service, "traced")
        self.tracer = tracer
        self.next_one = next_one
        self.notes: asyncio.Queue[str] = asyncio.Queue()

    async def where(self, hops: int) -> tuple[str, ...]:
        here = current()
        if hops == 0 or self.next_one is None:
            return (here,)
        with self.tracer.start_as_current_span("between") as span:
            await asyncio.sleep(0)
            return (here, name_of(span), *await self.next_one.where(hops - 1))

    async def note(self) -> None:
        self.notes.put_nowait(current())

    async def carried(self) -> dict[str, str] | None:
        await asyncio.sleep(0)
        return trace_context.get()


def name_of(span: trace.Span) -> str:
    made = span.get_span_context()
    return f"{made.trace_id:032x}-{made.span_id:016x}"


def current() -> str:
    return name_of(trace.get_current_span())


NOTHING = name_of(trace.INVALID_SPAN)


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider()
    yield provider.get_tracer("test")
    provider.shutdown()


async def chain(tracer: trace.Tracer, length: int) -> tuple[list[Traced], TracedGateway]:
    """Each asks the next."""
    network = LocalNetwork()
    gateway: TracedGateway | None = None
    endpoints = []
    caller = LocalRpcService("caller", network)
    for number in range(length):
        service = LocalRpcService(f"host-{number}", network)
        endpoint = Traced(service, tracer, gateway)
        endpoint.start()
        endpoints.append(endpoint)
        gateway = await caller.connect(endpoint.address, TracedGateway)
    assert gateway is not None
    return endpoints, gateway


async def test_handler_runs_in_the_trace_span_of_its_caller(tracer: trace.Tracer) -> None:
    _, gateway = await chain(tracer, 1)
    with tracer.start_as_current_span("caller") as span:
        assert await gateway.where(0) == (name_of(span),)
    with tracer.start_as_current_span("another") as other:
        assert await gateway.where(0) == (name_of(other),) != (name_of(span),)
    assert await gateway.where(0) == (NOTHING,)


async def test_calls_of_a_handler_are_children_of_its_span(tracer: trace.Tracer) -> None:
    _, gateway = await chain(tracer, 3)
    with tracer.start_as_current_span("caller") as span:
        first, between, second, between_again, third = await gateway.where(2)
    assert first == name_of(span)
    assert second == between != first
    assert third == between_again != second
    assert len({place.split("-")[0] for place in (first, second, third)}) == 1


async def test_tell_carries_the_span_and_a_call_without_a_span_sees_none(
    tracer: trace.Tracer,
) -> None:
    (endpoint,), gateway = await chain(tracer, 1)
    with tracer.start_as_current_span("caller") as span:
        await gateway.note()
        calls = [gateway.where(0)]
    await gateway.note()
    assert await asyncio.gather(*calls) == [(NOTHING,)]  # it was sent after the span
    assert await endpoint.notes.get() == name_of(span)
    assert await endpoint.notes.get() == NOTHING


async def test_call_without_a_span_carries_no_trace_context(tracer: trace.Tracer) -> None:
    _, gateway = await chain(tracer, 1)
    assert await gateway.carried() is None
    token = context.attach(context.set_value("something", "else"))
    assert outgoing_trace() is None
    context.detach(token)
    with tracer.start_as_current_span("caller"):
        assert list(await gateway.carried() or ()) == ["traceparent"]


WITHOUT_OPENTELEMETRY = """
import asyncio, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if "opentelemetry" in name else find_spec(name)
from flinkray.rpc.calls.tracing import enter_trace, outgoing_trace
assert outgoing_trace() is None
enter_trace({"traceparent": "x"})
assert outgoing_trace() == {"traceparent": "x"}
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
print("passed on")
"""


def test_trace_context_is_passed_on_without_opentelemetry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENTELEMETRY], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "passed on\n", done.stderr


def test_trace_context_of_an_unknown_format_is_passed_on_unchanged() -> None:
    def carried() -> dict[str, str] | None:
        enter_trace({"tenant": "blue"})
        assert not context.get_current()
        return outgoing_trace()

    assert copy_context().run(carried) == {"tenant": "blue"}
